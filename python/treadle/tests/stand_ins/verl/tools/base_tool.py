"""What verl's class of this name needs of a subclass, without PyTorch and Ray."""

from typing import Any


class BaseTool:
    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self.config = config
        self.tool_schema = tool_schema
        self.name = tool_schema.function.name
        tool_schema.model_dump(exclude_unset=True, exclude_none=True)
