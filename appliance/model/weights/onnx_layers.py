"""Whose weights the constants of a graph are: by their own names, by the names of the modules that
the nodes came from, by the bias added next, and a key's matrix, which has no bias, by the query
that it is multiplied with.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Set
from typing import Any

from appliance.model.weights.onnx_file import Scope
from appliance.model.weights.shapes import EMBEDDING, TIED_OUTPUT
from appliance.model.weights.stored import StoredTensor

MERGED = re.compile(r"_merged_\d+$")
PRODUCTS = {"MatMul", "Gemm"}
SAME = {"Identity", "Cast"}
"""Operators that leave numbers as they are."""
LONGEST_WAY, FARTHEST, MOST_PARTS = 8, 200, 10
"""Operators between a constant and its use, tensors on the way from a projection to the product,
parts of a name: a damaged graph may go in circles."""
MOVES = SAME | {"Reshape", "Transpose", "Mul", "Div", "Concat", "Unsqueeze", "Squeeze", "Split"}
MOVES |= {"Slice", "Expand"}
"""What may lie between a projection and the product of queries and keys."""
BY_MODULE = {
    "Add": {0: "bias", 1: "bias"},
    "BiasGelu": {1: "bias"},
    "Mul": {0: "weight", 1: "weight"},
    "LayerNormalization": {1: "weight", 2: "bias"},
    "Conv": {1: "weight", 2: "bias"},
    "Gather": {0: "weight"},
    "Gemm": {2: "bias"},
}
"""What an input of an operator is to the module that it came from."""
BIASED = {"Add", "BiasGelu", "Gemm"}
WEIGHT, BIAS, QUERY, KEY = ".weight", ".bias", ".q_proj", ".k_proj"


class Layers:
    """The weights found in one scope, in `found`, and what speaks against them, in `faults`."""

    def __init__(self, scope: Scope, half: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """`half` is model.encoder or model.decoder; `shapes` are of the weights wanted."""
        self.found: dict[str, StoredTensor] = {}
        self.faults: list[str] = []
        self._scope, self._shapes = scope, shapes
        self._tails = {name.removeprefix(f"{half}."): name for name in shapes}
        self._modules = {tail.rpartition(".")[0] for tail in self._tails}
        nodes = [node for node in scope.nodes if node.input and node.output]
        products = [node for node in nodes if node.op_type in PRODUCTS and len(node.input) > 1]
        self._maker = {output: node for node in nodes for output in node.output}
        self._users: dict[str, list[Any]] = {}
        for node in nodes:
            for name in node.input:
                self._users.setdefault(name, []).append(node)
        self._owners: dict[str, str] = {}
        """The module of a linear product, by its output."""
        for node in nodes:
            self._take_named(node)
        for node in products:
            self._take_matrix(node, self._module_by_name(node))
        self._met = {
            meeting: owner
            for output, owner in self._owners.items()
            if owner.endswith(QUERY)
            for meeting in self._onward(output, MOVES | {"Add"})
        }
        """The queries' module of each product of queries and keys, by its output."""
        for node in products:
            if node.output[0] not in self._owners:
                self._take_matrix(node, self._module_by_query(node))

    def added(self, shape: tuple[int, ...]) -> StoredTensor | None:
        """The one constant of this shape, or of a batch of one, that is added to something."""
        tables = {
            tensor
            for node in self._scope.nodes
            if node.op_type == "Add"
            for name in node.input
            if (tensor := self._constant(name)[0]) and tensor.shape in {shape, (1, *shape)}
        }
        return tables.pop() if len(tables) == 1 else None

    def _take_named(self, node: Any) -> None:
        """Takes the constants at a node that are no matrix of a linear layer."""
        module = self._module_by_scope(node)
        roles = BY_MODULE.get(node.op_type, {})
        for place, name in enumerate(node.input):
            tensor, _ = self._constant(name)
            if tensor is None or (node.op_type in PRODUCTS and place < 2):
                continue
            own = self._full(name)
            self._take(EMBEDDING if own == TIED_OUTPUT else own, tensor)
            full = self._tails.get(f"{module}.{roles.get(place, '')}", "")
            if tensor.shape == self._shapes.get(full):
                self._take(full, tensor)

    def _take_matrix(self, node: Any, module: str) -> None:
        """Takes the matrix of a linear product, as (out, in), for a module."""
        matrix = self._matrix(node)
        if matrix is not None and module:
            self._owners[node.output[0]] = module
            self._take(module + WEIGHT, matrix)

    def _take(self, name: str, tensor: StoredTensor) -> None:
        if name in self._shapes and self.found.setdefault(name, tensor) != tensor:
            self.faults.append(f"{name}: claimed by two constants")

    def _module_by_name(self, node: Any) -> str:
        """The module of a linear product, by any name at it; empty where there is none."""
        own = self._full(node.input[1])
        if own.endswith(WEIGHT) and not self._is_output(node):
            return own.removesuffix(WEIGHT)
        if full := self._tails.get(self._module_by_scope(node) + WEIGHT):
            return full.removesuffix(WEIGHT)
        for user in (node, *self._users.get(node.output[0], ())):
            if user.op_type in BIASED:
                for name in user.input:
                    if (full := self._full(name)).endswith(BIAS):
                        return full.removesuffix(BIAS)
        return TIED_OUTPUT.removesuffix(WEIGHT) if self._is_output(node) else ""

    def _is_output(self, node: Any) -> bool:
        """Whether this is the product with the vocabulary, by its shape."""
        matrix = self._matrix(node)
        return matrix is not None and matrix.shape == self._shapes.get(TIED_OUTPUT)

    def _module_by_query(self, node: Any) -> str:
        """The key projection whose product meets a query's; empty where it meets none."""
        for meeting in self._onward(node.output[0], MOVES):
            if meeting in self._met:
                return self._met[meeting].removesuffix(QUERY) + KEY
        return ""

    def _onward(self, tensor: str, moves: Set[str]) -> Iterator[str]:
        """The outputs of the products that a tensor reaches by these operators alone."""
        waiting, seen = [tensor], {tensor}
        while waiting and len(seen) < FARTHEST:
            for user in self._users.get(waiting.pop(), ()):
                if user.op_type == "MatMul":
                    yield user.output[0]
                elif user.op_type in moves:
                    fresh = [output for output in user.output if output not in seen]
                    seen.update(fresh)
                    waiting += fresh

    def _matrix(self, node: Any) -> StoredTensor | None:
        """The constant of a linear product as (out, in); None where it has none."""
        tensor, turned = self._constant(node.input[1])
        if tensor is None or len(tensor.shape) != 2:
            return None
        flags = {each.name: each.i for each in node.attribute}
        as_stored = turned != bool(flags.get("transB", 0))
        return tensor if as_stored else tensor.transpose()

    def _constant(self, name: str) -> tuple[StoredTensor | None, bool]:
        """The constant behind a tensor, as it is stored, and whether it arrives transposed."""
        name, turned = self._way_back(name)
        return self._scope.constants.get(name), turned

    def _way_back(self, name: str) -> tuple[str, bool]:
        """Where a tensor's numbers come from, and whether they were transposed on the way."""
        turned = False
        for _ in range(LONGEST_WAY):
            node = self._maker.get(name)
            if node is None or node.op_type not in SAME | {"Transpose"}:
                break
            turned ^= node.op_type == "Transpose"
            name = node.input[0]
        return name, turned

    def _full(self, name: str) -> str:
        """The weight that a constant is named after; empty where it is none's."""
        return self._tails.get(_end_in(MERGED.sub("", self._way_back(name)[0]), self._tails), "")

    def _module_by_scope(self, node: Any) -> str:
        """The module's name, without the network's half, that torch left in the node's name:
        /model/decoder/layers.0/fc1/MatMul is of layers.0.fc1. Empty where it left none.
        """
        path = node.name.rpartition("/")[0].strip("/").replace("/", ".")
        return _end_in(path, self._modules)


def _end_in(name: str, known: Container[str]) -> str:
    """The longest end of a dotted name that is known; empty where none is."""
    parts = name.split(".")[-MOST_PARTS:]
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if end in known), "")
