"""Seeded draws without state, the same as those of the embedded engine (packages/engines/src/random.ts)."""

_MASK = 0xFFFFFFFF


def mix(*words: int) -> int:
    """Mixes integers into 32 well-spread bits (the finaliser of MurmurHash3 after each word)."""
    value = 0x9E3779B9
    for word in words:
        value = ((value ^ word) & _MASK) * 0x85EBCA6B & _MASK
        value = (value ^ (value >> 13)) * 0xC2B2AE35 & _MASK
        value = ((value ^ (value >> 16)) + 0x6D2B79F5) & _MASK
    value = (value ^ (value >> 16)) * 0x85EBCA6B & _MASK
    value = (value ^ (value >> 13)) * 0xC2B2AE35 & _MASK
    return value ^ (value >> 16)


def uniform(*words: int) -> float:
    """In (0, 1): never 0."""
    return (mix(*words) + 0.5) / 4294967296
