"""What a client is told, by the codes of Treadle's catalogue (packages/contracts/src/errors.ts)."""


class Refusal(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> Refusal:
    return Refusal("engine.invalid-request", message)
