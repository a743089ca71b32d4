from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tag(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TAG_WEIGHTS: _ClassVar[Tag]
    TAG_OPTIMISER: _ClassVar[Tag]
    TAG_CACHE: _ClassVar[Tag]

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHTS: _ClassVar[State]
    GRADIENTS: _ClassVar[State]
    CHECKPOINT: _ClassVar[State]
TAG_WEIGHTS: Tag
TAG_OPTIMISER: Tag
TAG_CACHE: Tag
WEIGHTS: State
GRADIENTS: State
CHECKPOINT: State

class AttachRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: str
    def __init__(self, client: _Optional[str] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("tags",)
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedScalarFieldContainer[Tag]
    def __init__(self, tags: _Optional[_Iterable[_Union[Tag, str]]] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("moved",)
    MOVED_FIELD_NUMBER: _ClassVar[int]
    moved: Moved
    def __init__(self, moved: _Optional[_Union[Moved, _Mapping]] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("tags",)
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedScalarFieldContainer[Tag]
    def __init__(self, tags: _Optional[_Iterable[_Union[Tag, str]]] = ...) -> None: ...

class RestoreReply(_message.Message):
    __slots__ = ("moved",)
    MOVED_FIELD_NUMBER: _ClassVar[int]
    moved: Moved
    def __init__(self, moved: _Optional[_Union[Moved, _Mapping]] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("before", "after", "num_bytes", "seconds", "note")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    before: DeviceMemory
    after: DeviceMemory
    num_bytes: int
    seconds: float
    note: str
    def __init__(self, before: _Optional[_Union[DeviceMemory, _Mapping]] = ..., after: _Optional[_Union[DeviceMemory, _Mapping]] = ..., num_bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class DeviceMemory(_message.Message):
    __slots__ = ("free_bytes", "total_bytes", "allocated_bytes", "reserved_bytes")
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    free_bytes: int
    total_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    def __init__(self, free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., allocated_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ...) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("device", "dtype", "busy_seconds", "num_waiting", "paused", "released")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    device: str
    dtype: str
    busy_seconds: float
    num_waiting: int
    paused: bool
    released: _containers.RepeatedScalarFieldContainer[Tag]
    def __init__(self, device: _Optional[str] = ..., dtype: _Optional[str] = ..., busy_seconds: _Optional[float] = ..., num_waiting: _Optional[int] = ..., paused: bool = ..., released: _Optional[_Iterable[_Union[Tag, str]]] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("epoch", "sequence")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    sequence: int
    def __init__(self, epoch: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class Parameter(_message.Message):
    __slots__ = ("name", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("epoch", "policy_version", "vocab_size", "context_length", "has_values", "parameters", "torch_version", "transformers_version", "trained", "device_uuid")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRANSFORMERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    epoch: str
    policy_version: int
    vocab_size: int
    context_length: int
    has_values: bool
    parameters: _containers.RepeatedCompositeFieldContainer[Parameter]
    torch_version: str
    transformers_version: str
    trained: _containers.RepeatedCompositeFieldContainer[Parameter]
    device_uuid: str
    def __init__(self, epoch: _Optional[str] = ..., policy_version: _Optional[int] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., has_values: bool = ..., parameters: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., torch_version: _Optional[str] = ..., transformers_version: _Optional[str] = ..., trained: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., device_uuid: _Optional[str] = ...) -> None: ...

class MemoryReply(_message.Message):
    __slots__ = ("resident_bytes", "host_bytes", "device", "tags", "policy_version", "weights_serial")
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SERIAL_FIELD_NUMBER: _ClassVar[int]
    resident_bytes: int
    host_bytes: int
    device: DeviceMemory
    tags: _containers.RepeatedCompositeFieldContainer[TagMemory]
    policy_version: int
    weights_serial: int
    def __init__(self, resident_bytes: _Optional[int] = ..., host_bytes: _Optional[int] = ..., device: _Optional[_Union[DeviceMemory, _Mapping]] = ..., tags: _Optional[_Iterable[_Union[TagMemory, _Mapping]]] = ..., policy_version: _Optional[int] = ..., weights_serial: _Optional[int] = ...) -> None: ...

class TagMemory(_message.Message):
    __slots__ = ("tag", "bytes", "release_seconds", "restore_seconds")
    TAG_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RELEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    tag: Tag
    bytes: int
    release_seconds: float
    restore_seconds: float
    def __init__(self, tag: _Optional[_Union[Tag, str]] = ..., bytes: _Optional[int] = ..., release_seconds: _Optional[float] = ..., restore_seconds: _Optional[float] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: bytes
    def __init__(self, bytes: _Optional[bytes] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("start", "prompts", "extension", "abort")
    START_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    start: Start
    prompts: Prompts
    extension: Extension
    abort: Abort
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., prompts: _Optional[_Union[Prompts, _Mapping]] = ..., extension: _Optional[_Union[Extension, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("num_prompts", "max_tokens", "temperature", "stop_tokens", "seed", "extensible", "progress_ms", "policy_version")
    NUM_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EXTENSIBLE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_MS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    num_prompts: int
    max_tokens: int
    temperature: float
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    seed: int
    extensible: bool
    progress_ms: int
    policy_version: int
    def __init__(self, num_prompts: _Optional[int] = ..., max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., seed: _Optional[int] = ..., extensible: bool = ..., progress_ms: _Optional[int] = ..., policy_version: _Optional[int] = ...) -> None: ...

class Prompts(_message.Message):
    __slots__ = ("keys", "lengths", "tokens", "begun_lengths", "num_appended", "begun_tokens", "begun_logprobs")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    NUM_APPENDED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    tokens: bytes
    begun_lengths: _containers.RepeatedScalarFieldContainer[int]
    num_appended: _containers.RepeatedScalarFieldContainer[int]
    begun_tokens: bytes
    begun_logprobs: bytes
    def __init__(self, keys: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., tokens: _Optional[bytes] = ..., begun_lengths: _Optional[_Iterable[int]] = ..., num_appended: _Optional[_Iterable[int]] = ..., begun_tokens: _Optional[bytes] = ..., begun_logprobs: _Optional[bytes] = ...) -> None: ...

class Extension(_message.Message):
    __slots__ = ("index", "attempt", "tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    attempt: int
    tokens: bytes
    def __init__(self, index: _Optional[int] = ..., attempt: _Optional[int] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class GenerateReply(_message.Message):
    __slots__ = ("completions", "progress")
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    completions: Completions
    progress: Progress
    def __init__(self, completions: _Optional[_Union[Completions, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("indices", "attempts", "lengths", "tokens", "logprobs")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    tokens: bytes
    logprobs: bytes
    def __init__(self, indices: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., tokens: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ...) -> None: ...

class Completions(_message.Message):
    __slots__ = ("rows", "finish_reasons", "held", "policy_version")
    class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STOP: _ClassVar[Completions.FinishReason]
        LENGTH: _ClassVar[Completions.FinishReason]
        ABORT: _ClassVar[Completions.FinishReason]
    STOP: Completions.FinishReason
    LENGTH: Completions.FinishReason
    ABORT: Completions.FinishReason
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    rows: Rows
    finish_reasons: _containers.RepeatedScalarFieldContainer[Completions.FinishReason]
    held: _containers.RepeatedScalarFieldContainer[bool]
    policy_version: int
    def __init__(self, rows: _Optional[_Union[Rows, _Mapping]] = ..., finish_reasons: _Optional[_Iterable[_Union[Completions.FinishReason, str]]] = ..., held: _Optional[_Iterable[bool]] = ..., policy_version: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("rows", "starts")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    rows: Rows
    starts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[_Union[Rows, _Mapping]] = ..., starts: _Optional[_Iterable[int]] = ...) -> None: ...

class BatchPart(_message.Message):
    __slots__ = ("header", "bytes")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    header: BatchHeader
    bytes: bytes
    def __init__(self, header: _Optional[_Union[BatchHeader, _Mapping]] = ..., bytes: _Optional[bytes] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("turn", "rows", "columns", "arrays", "output", "loss")
    class Output(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LOGPROBS: _ClassVar[BatchHeader.Output]
        VALUES: _ClassVar[BatchHeader.Output]
    LOGPROBS: BatchHeader.Output
    VALUES: BatchHeader.Output
    TURN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    turn: Turn
    rows: int
    columns: int
    arrays: _containers.RepeatedScalarFieldContainer[str]
    output: BatchHeader.Output
    loss: Loss
    def __init__(self, turn: _Optional[_Union[Turn, _Mapping]] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., arrays: _Optional[_Iterable[str]] = ..., output: _Optional[_Union[BatchHeader.Output, str]] = ..., loss: _Optional[_Union[Loss, _Mapping]] = ...) -> None: ...

class Loss(_message.Message):
    __slots__ = ("cross_entropy", "policy_gradient")
    CROSS_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    POLICY_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    cross_entropy: CrossEntropy
    policy_gradient: PolicyGradient
    def __init__(self, cross_entropy: _Optional[_Union[CrossEntropy, _Mapping]] = ..., policy_gradient: _Optional[_Union[PolicyGradient, _Mapping]] = ...) -> None: ...

class CrossEntropy(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PolicyGradient(_message.Message):
    __slots__ = ("ratio", "surrogate", "clip_low", "clip_high", "dual_clip", "kl_coefficient", "kl_estimator", "entropy_coefficient", "value")
    RATIO_FIELD_NUMBER: _ClassVar[int]
    SURROGATE_FIELD_NUMBER: _ClassVar[int]
    CLIP_LOW_FIELD_NUMBER: _ClassVar[int]
    CLIP_HIGH_FIELD_NUMBER: _ClassVar[int]
    DUAL_CLIP_FIELD_NUMBER: _ClassVar[int]
    KL_COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    KL_ESTIMATOR_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ratio: str
    surrogate: str
    clip_low: float
    clip_high: float
    dual_clip: float
    kl_coefficient: float
    kl_estimator: str
    entropy_coefficient: float
    value: ValueLoss
    def __init__(self, ratio: _Optional[str] = ..., surrogate: _Optional[str] = ..., clip_low: _Optional[float] = ..., clip_high: _Optional[float] = ..., dual_clip: _Optional[float] = ..., kl_coefficient: _Optional[float] = ..., kl_estimator: _Optional[str] = ..., entropy_coefficient: _Optional[float] = ..., value: _Optional[_Union[ValueLoss, _Mapping]] = ...) -> None: ...

class ValueLoss(_message.Message):
    __slots__ = ("coefficient", "clip")
    COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    coefficient: float
    clip: float
    def __init__(self, coefficient: _Optional[float] = ..., clip: _Optional[float] = ...) -> None: ...

class LossMetrics(_message.Message):
    __slots__ = ("loss", "weight", "kl", "entropy", "clip_fraction", "value_loss")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    KL_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    CLIP_FRACTION_FIELD_NUMBER: _ClassVar[int]
    VALUE_LOSS_FIELD_NUMBER: _ClassVar[int]
    loss: float
    weight: float
    kl: float
    entropy: float
    clip_fraction: float
    value_loss: float
    def __init__(self, loss: _Optional[float] = ..., weight: _Optional[float] = ..., kl: _Optional[float] = ..., entropy: _Optional[float] = ..., clip_fraction: _Optional[float] = ..., value_loss: _Optional[float] = ...) -> None: ...

class OptimStepRequest(_message.Message):
    __slots__ = ("turn", "learning_rate", "scale", "max_grad_norm", "beta1", "beta2", "epsilon", "weight_decay")
    TURN_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    MAX_GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    turn: Turn
    learning_rate: float
    scale: float
    max_grad_norm: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    def __init__(self, turn: _Optional[_Union[Turn, _Mapping]] = ..., learning_rate: _Optional[float] = ..., scale: _Optional[float] = ..., max_grad_norm: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., epsilon: _Optional[float] = ..., weight_decay: _Optional[float] = ...) -> None: ...

class OptimStepReply(_message.Message):
    __slots__ = ("grad_norm", "policy_version")
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    grad_norm: float
    policy_version: int
    def __init__(self, grad_norm: _Optional[float] = ..., policy_version: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: State
    def __init__(self, state: _Optional[_Union[State, str]] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveReply(_message.Message):
    __slots__ = ("copy",)
    COPY_FIELD_NUMBER: _ClassVar[int]
    copy: str
    def __init__(self, copy: _Optional[str] = ...) -> None: ...

class ReadSavedRequest(_message.Message):
    __slots__ = ("copy",)
    COPY_FIELD_NUMBER: _ClassVar[int]
    copy: str
    def __init__(self, copy: _Optional[str] = ...) -> None: ...

class WriteSavedRequest(_message.Message):
    __slots__ = ("copy", "path")
    COPY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    copy: str
    path: str
    def __init__(self, copy: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class WriteSavedReply(_message.Message):
    __slots__ = ("num_bytes", "sha256")
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    sha256: str
    def __init__(self, num_bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class WriteShardsRequest(_message.Message):
    __slots__ = ("copy", "paths")
    COPY_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    copy: str
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, copy: _Optional[str] = ..., paths: _Optional[_Iterable[str]] = ...) -> None: ...

class WriteShardsReply(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[WriteSavedReply]
    def __init__(self, files: _Optional[_Iterable[_Union[WriteSavedReply, _Mapping]]] = ...) -> None: ...

class WritePart(_message.Message):
    __slots__ = ("header", "bytes")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    header: WriteHeader
    bytes: bytes
    def __init__(self, header: _Optional[_Union[WriteHeader, _Mapping]] = ..., bytes: _Optional[bytes] = ...) -> None: ...

class WriteHeader(_message.Message):
    __slots__ = ("turn", "state", "num_bytes", "sha256", "policy_version")
    TURN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    turn: Turn
    state: State
    num_bytes: int
    sha256: bytes
    policy_version: int
    def __init__(self, turn: _Optional[_Union[Turn, _Mapping]] = ..., state: _Optional[_Union[State, str]] = ..., num_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., policy_version: _Optional[int] = ...) -> None: ...

class WriteReply(_message.Message):
    __slots__ = ("policy_version",)
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    def __init__(self, policy_version: _Optional[int] = ...) -> None: ...

class LoadFileRequest(_message.Message):
    __slots__ = ("turn", "path")
    TURN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    turn: Turn
    path: str
    def __init__(self, turn: _Optional[_Union[Turn, _Mapping]] = ..., path: _Optional[str] = ...) -> None: ...

class LoadShardsRequest(_message.Message):
    __slots__ = ("turn", "paths")
    TURN_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    turn: Turn
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, turn: _Optional[_Union[Turn, _Mapping]] = ..., paths: _Optional[_Iterable[str]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WriteFileRequest(_message.Message):
    __slots__ = ("folder",)
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    folder: str
    def __init__(self, folder: _Optional[str] = ...) -> None: ...

class DevicePlace(_message.Message):
    __slots__ = ("uuid", "handle")
    UUID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    handle: bytes
    def __init__(self, uuid: _Optional[str] = ..., handle: _Optional[bytes] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "shape", "dtype", "crc32")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    crc32: int
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., crc32: _Optional[int] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("policy_version", "store", "nonce", "folder", "tensors", "obstacle", "adapter", "device")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    OBSTACLE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    store: str
    nonce: str
    folder: str
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    obstacle: str
    adapter: Adapter
    device: DevicePlace
    def __init__(self, policy_version: _Optional[int] = ..., store: _Optional[str] = ..., nonce: _Optional[str] = ..., folder: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., obstacle: _Optional[str] = ..., adapter: _Optional[_Union[Adapter, _Mapping]] = ..., device: _Optional[_Union[DevicePlace, _Mapping]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("rank", "tensors", "config_crc32")
    RANK_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_CRC32_FIELD_NUMBER: _ClassVar[int]
    rank: int
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    config_crc32: int
    def __init__(self, rank: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., config_crc32: _Optional[int] = ...) -> None: ...

class OfferRequest(_message.Message):
    __slots__ = ("link",)
    LINK_FIELD_NUMBER: _ClassVar[int]
    link: str
    def __init__(self, link: _Optional[str] = ...) -> None: ...

class OfferReply(_message.Message):
    __slots__ = ("link",)
    LINK_FIELD_NUMBER: _ClassVar[int]
    link: Link
    def __init__(self, link: _Optional[_Union[Link, _Mapping]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("link",)
    LINK_FIELD_NUMBER: _ClassVar[int]
    link: Link
    def __init__(self, link: _Optional[_Union[Link, _Mapping]] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Link(_message.Message):
    __slots__ = ("name", "host", "port", "secret")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    port: int
    secret: bytes
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("turn", "policy_version", "store", "nonce", "folder", "tensors", "device", "link")
    TURN_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    turn: Turn
    policy_version: int
    store: str
    nonce: str
    folder: str
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    device: DevicePlace
    link: str
    def __init__(self, turn: _Optional[_Union[Turn, _Mapping]] = ..., policy_version: _Optional[int] = ..., store: _Optional[str] = ..., nonce: _Optional[str] = ..., folder: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., device: _Optional[_Union[DevicePlace, _Mapping]] = ..., link: _Optional[str] = ...) -> None: ...
