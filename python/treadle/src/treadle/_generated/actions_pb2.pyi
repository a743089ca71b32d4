from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenTrajectoryRequest(_message.Message):
    __slots__ = ("trajectory", "tenant", "memory_bytes", "max_processes", "network", "prepare", "restorable", "image", "user", "working_folder", "environment", "idempotency_key", "snapshot", "disk_bytes")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    RESTORABLE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WORKING_FOLDER_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    tenant: str
    memory_bytes: int
    max_processes: int
    network: bool
    prepare: _containers.RepeatedCompositeFieldContainer[Command]
    restorable: bool
    image: str
    user: str
    working_folder: str
    environment: _containers.ScalarMap[str, str]
    idempotency_key: str
    snapshot: str
    disk_bytes: int
    def __init__(self, trajectory: _Optional[str] = ..., tenant: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., max_processes: _Optional[int] = ..., network: bool = ..., prepare: _Optional[_Iterable[_Union[Command, _Mapping]]] = ..., restorable: bool = ..., image: _Optional[str] = ..., user: _Optional[str] = ..., working_folder: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., idempotency_key: _Optional[str] = ..., snapshot: _Optional[str] = ..., disk_bytes: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("words",)
    WORDS_FIELD_NUMBER: _ClassVar[int]
    words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, words: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenTrajectoryReply(_message.Message):
    __slots__ = ("trajectory", "repeat_seconds")
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    REPEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    repeat_seconds: float
    def __init__(self, trajectory: _Optional[str] = ..., repeat_seconds: _Optional[float] = ...) -> None: ...

class UnitRange(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class UnitSet(_message.Message):
    __slots__ = ("units",)
    UNITS_FIELD_NUMBER: _ClassVar[int]
    units: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, units: _Optional[_Iterable[int]] = ...) -> None: ...

class Amount(_message.Message):
    __slots__ = ("fixed", "range", "set")
    FIXED_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    fixed: float
    range: UnitRange
    set: UnitSet
    def __init__(self, fixed: _Optional[float] = ..., range: _Optional[_Union[UnitRange, _Mapping]] = ..., set: _Optional[_Union[UnitSet, _Mapping]] = ...) -> None: ...

class UnitPoint(_message.Message):
    __slots__ = ("units", "value")
    UNITS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    units: int
    value: float
    def __init__(self, units: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class UnitPoints(_message.Message):
    __slots__ = ("points",)
    POINTS_FIELD_NUMBER: _ClassVar[int]
    points: _containers.RepeatedCompositeFieldContainer[UnitPoint]
    def __init__(self, points: _Optional[_Iterable[_Union[UnitPoint, _Mapping]]] = ...) -> None: ...

class Elasticity(_message.Message):
    __slots__ = ("amdahl", "power", "efficiency", "seconds")
    AMDAHL_FIELD_NUMBER: _ClassVar[int]
    POWER_FIELD_NUMBER: _ClassVar[int]
    EFFICIENCY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    amdahl: float
    power: float
    efficiency: UnitPoints
    seconds: UnitPoints
    def __init__(self, amdahl: _Optional[float] = ..., power: _Optional[float] = ..., efficiency: _Optional[_Union[UnitPoints, _Mapping]] = ..., seconds: _Optional[_Union[UnitPoints, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("trajectory", "kind", "cost", "key", "elasticity", "duration_seconds", "priority", "deadline_ms", "retries", "command", "environment", "stdin", "timeout_ms", "max_output_bytes", "action", "idempotency_key", "session", "input", "service", "request", "tenant")
    class CostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Amount
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Amount, _Mapping]] = ...) -> None: ...
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ELASTICITY_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    kind: str
    cost: _containers.MessageMap[str, Amount]
    key: str
    elasticity: Elasticity
    duration_seconds: float
    priority: float
    deadline_ms: float
    retries: int
    command: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    stdin: bytes
    timeout_ms: float
    max_output_bytes: int
    action: str
    idempotency_key: str
    session: str
    input: bool
    service: str
    request: ServiceRequest
    tenant: str
    def __init__(self, trajectory: _Optional[str] = ..., kind: _Optional[str] = ..., cost: _Optional[_Mapping[str, Amount]] = ..., key: _Optional[str] = ..., elasticity: _Optional[_Union[Elasticity, _Mapping]] = ..., duration_seconds: _Optional[float] = ..., priority: _Optional[float] = ..., deadline_ms: _Optional[float] = ..., retries: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., stdin: _Optional[bytes] = ..., timeout_ms: _Optional[float] = ..., max_output_bytes: _Optional[int] = ..., action: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., session: _Optional[str] = ..., input: bool = ..., service: _Optional[str] = ..., request: _Optional[_Union[ServiceRequest, _Mapping]] = ..., tenant: _Optional[str] = ...) -> None: ...

class ServiceRequest(_message.Message):
    __slots__ = ("method", "path", "headers", "body")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    method: str
    path: str
    headers: _containers.ScalarMap[str, str]
    body: bytes
    def __init__(self, method: _Optional[str] = ..., path: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ...) -> None: ...

class SendInputRequest(_message.Message):
    __slots__ = ("action", "data", "offset", "end")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    action: str
    data: bytes
    offset: int
    end: bool
    def __init__(self, action: _Optional[str] = ..., data: _Optional[bytes] = ..., offset: _Optional[int] = ..., end: bool = ...) -> None: ...

class SendInputReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SignalRequest(_message.Message):
    __slots__ = ("action", "signal")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    action: str
    signal: str
    def __init__(self, action: _Optional[str] = ..., signal: _Optional[str] = ...) -> None: ...

class SignalReply(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: bool = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("trajectory", "session", "idempotency_key")
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    session: str
    idempotency_key: str
    def __init__(self, trajectory: _Optional[str] = ..., session: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("trajectory", "session")
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    session: str
    def __init__(self, trajectory: _Optional[str] = ..., session: _Optional[str] = ...) -> None: ...

class CloseSessionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("tenant", "kind", "cost", "key", "elasticity", "duration_seconds", "priority", "deadline_ms", "service", "lease")
    class CostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Amount
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Amount, _Mapping]] = ...) -> None: ...
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ELASTICITY_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    kind: str
    cost: _containers.MessageMap[str, Amount]
    key: str
    elasticity: Elasticity
    duration_seconds: float
    priority: float
    deadline_ms: float
    service: str
    lease: str
    def __init__(self, tenant: _Optional[str] = ..., kind: _Optional[str] = ..., cost: _Optional[_Mapping[str, Amount]] = ..., key: _Optional[str] = ..., elasticity: _Optional[_Union[Elasticity, _Mapping]] = ..., duration_seconds: _Optional[float] = ..., priority: _Optional[float] = ..., deadline_ms: _Optional[float] = ..., service: _Optional[str] = ..., lease: _Optional[str] = ...) -> None: ...

class AcquireEvent(_message.Message):
    __slots__ = ("queued", "granted")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    queued: LeaseQueued
    granted: LeaseGranted
    def __init__(self, queued: _Optional[_Union[LeaseQueued, _Mapping]] = ..., granted: _Optional[_Union[LeaseGranted, _Mapping]] = ...) -> None: ...

class LeaseQueued(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: str
    def __init__(self, lease: _Optional[str] = ...) -> None: ...

class LeaseGranted(_message.Message):
    __slots__ = ("allocation", "url", "why")
    class AllocationEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    allocation: _containers.ScalarMap[str, float]
    url: str
    why: str
    def __init__(self, allocation: _Optional[_Mapping[str, float]] = ..., url: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease", "http_status", "retry_after")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HTTP_STATUS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    lease: str
    http_status: int
    retry_after: str
    def __init__(self, lease: _Optional[str] = ..., http_status: _Optional[int] = ..., retry_after: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ActionEvent(_message.Message):
    __slots__ = ("queued", "started", "output", "finished")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    queued: Queued
    started: Started
    output: Output
    finished: Finished
    def __init__(self, queued: _Optional[_Union[Queued, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., output: _Optional[_Union[Output, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("action",)
    ACTION_FIELD_NUMBER: _ClassVar[int]
    action: str
    def __init__(self, action: _Optional[str] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("allocation", "cores", "attempt", "why", "host")
    class AllocationEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    allocation: _containers.ScalarMap[str, float]
    cores: _containers.RepeatedScalarFieldContainer[int]
    attempt: int
    why: str
    host: str
    def __init__(self, allocation: _Optional[_Mapping[str, float]] = ..., cores: _Optional[_Iterable[int]] = ..., attempt: _Optional[int] = ..., why: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("stdout", "stderr")
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    stdout: bytes
    stderr: bytes
    def __init__(self, stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("status", "exit_code", "queueing_seconds", "overhead_seconds", "execution_seconds", "http_status", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    QUEUEING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HTTP_STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    status: str
    exit_code: int
    queueing_seconds: float
    overhead_seconds: float
    execution_seconds: float
    http_status: int
    headers: _containers.ScalarMap[str, str]
    def __init__(self, status: _Optional[str] = ..., exit_code: _Optional[int] = ..., queueing_seconds: _Optional[float] = ..., overhead_seconds: _Optional[float] = ..., execution_seconds: _Optional[float] = ..., http_status: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("action",)
    ACTION_FIELD_NUMBER: _ClassVar[int]
    action: str
    def __init__(self, action: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: bool = ...) -> None: ...

class WriteFileRequest(_message.Message):
    __slots__ = ("trajectory", "path", "data")
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    path: str
    data: bytes
    def __init__(self, trajectory: _Optional[str] = ..., path: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteFileReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("trajectory", "path")
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    path: str
    def __init__(self, trajectory: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class ReadFileReply(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class UploadRequest(_message.Message):
    __slots__ = ("trajectory", "path", "data")
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    path: str
    data: bytes
    def __init__(self, trajectory: _Optional[str] = ..., path: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("trajectory", "path")
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    path: str
    def __init__(self, trajectory: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class DownloadReply(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class TakeSnapshotRequest(_message.Message):
    __slots__ = ("trajectory", "snapshot", "idempotency_key")
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    snapshot: str
    idempotency_key: str
    def __init__(self, trajectory: _Optional[str] = ..., snapshot: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class TakeSnapshotReply(_message.Message):
    __slots__ = ("snapshot", "size_bytes")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    size_bytes: int
    def __init__(self, snapshot: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class DropSnapshotRequest(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    def __init__(self, snapshot: _Optional[str] = ...) -> None: ...

class DropSnapshotReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseTrajectoryRequest(_message.Message):
    __slots__ = ("trajectory",)
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    trajectory: str
    def __init__(self, trajectory: _Optional[str] = ...) -> None: ...

class CloseTrajectoryReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatisticsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Curve(_message.Message):
    __slots__ = ("source", "efficiency")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EFFICIENCY_FIELD_NUMBER: _ClassVar[int]
    source: str
    efficiency: _containers.RepeatedCompositeFieldContainer[UnitPoint]
    def __init__(self, source: _Optional[str] = ..., efficiency: _Optional[_Iterable[_Union[UnitPoint, _Mapping]]] = ...) -> None: ...

class KindStatistics(_message.Message):
    __slots__ = ("submitted", "completed", "failed", "cancelled", "retried", "act_seconds", "queueing_seconds", "execution_seconds", "overhead_seconds", "longest_act_seconds", "curve", "expected_seconds", "prediction_error")
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    ACT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUEING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_ACT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_ERROR_FIELD_NUMBER: _ClassVar[int]
    submitted: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    act_seconds: float
    queueing_seconds: float
    execution_seconds: float
    overhead_seconds: float
    longest_act_seconds: float
    curve: Curve
    expected_seconds: float
    prediction_error: float
    def __init__(self, submitted: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., retried: _Optional[int] = ..., act_seconds: _Optional[float] = ..., queueing_seconds: _Optional[float] = ..., execution_seconds: _Optional[float] = ..., overhead_seconds: _Optional[float] = ..., longest_act_seconds: _Optional[float] = ..., curve: _Optional[_Union[Curve, _Mapping]] = ..., expected_seconds: _Optional[float] = ..., prediction_error: _Optional[float] = ...) -> None: ...

class ResourceUsage(_message.Message):
    __slots__ = ("units", "held", "held_seconds", "timeline")
    UNITS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    HELD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    units: float
    held: float
    held_seconds: float
    timeline: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, units: _Optional[float] = ..., held: _Optional[float] = ..., held_seconds: _Optional[float] = ..., timeline: _Optional[_Iterable[float]] = ...) -> None: ...

class StartedAction(_message.Message):
    __slots__ = ("action", "kind", "tenant", "seconds_ago", "waited_seconds", "units", "expected_seconds", "why")
    class UnitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    action: str
    kind: str
    tenant: str
    seconds_ago: float
    waited_seconds: float
    units: _containers.ScalarMap[str, float]
    expected_seconds: float
    why: str
    def __init__(self, action: _Optional[str] = ..., kind: _Optional[str] = ..., tenant: _Optional[str] = ..., seconds_ago: _Optional[float] = ..., waited_seconds: _Optional[float] = ..., units: _Optional[_Mapping[str, float]] = ..., expected_seconds: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class TenantLoad(_message.Message):
    __slots__ = ("waiting", "running")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ...) -> None: ...

class Charged(_message.Message):
    __slots__ = ("unit_seconds",)
    class UnitSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    UNIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    unit_seconds: _containers.ScalarMap[str, float]
    def __init__(self, unit_seconds: _Optional[_Mapping[str, float]] = ...) -> None: ...

class HostLoad(_message.Message):
    __slots__ = ("cores", "held", "memory_bytes", "reserved_bytes", "away")
    CORES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    cores: int
    held: int
    memory_bytes: float
    reserved_bytes: float
    away: str
    def __init__(self, cores: _Optional[int] = ..., held: _Optional[int] = ..., memory_bytes: _Optional[float] = ..., reserved_bytes: _Optional[float] = ..., away: _Optional[str] = ...) -> None: ...

class RestoreCost(_message.Message):
    __slots__ = ("service", "devices", "start_seconds", "wake_seconds")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    START_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAKE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    service: str
    devices: int
    start_seconds: float
    wake_seconds: float
    def __init__(self, service: _Optional[str] = ..., devices: _Optional[int] = ..., start_seconds: _Optional[float] = ..., wake_seconds: _Optional[float] = ...) -> None: ...

class GetStatisticsReply(_message.Message):
    __slots__ = ("kinds", "waiting", "running", "isolation", "resources", "started", "tenants", "policy", "uptime_seconds", "trajectories", "draining", "charged", "hosts", "restores")
    class KindsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: KindStatistics
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[KindStatistics, _Mapping]] = ...) -> None: ...
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ResourceUsage
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ResourceUsage, _Mapping]] = ...) -> None: ...
    class TenantsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TenantLoad
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TenantLoad, _Mapping]] = ...) -> None: ...
    class ChargedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Charged
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Charged, _Mapping]] = ...) -> None: ...
    class HostsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: HostLoad
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[HostLoad, _Mapping]] = ...) -> None: ...
    KINDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.MessageMap[str, KindStatistics]
    waiting: int
    running: int
    isolation: str
    resources: _containers.MessageMap[str, ResourceUsage]
    started: _containers.RepeatedCompositeFieldContainer[StartedAction]
    tenants: _containers.MessageMap[str, TenantLoad]
    policy: str
    uptime_seconds: float
    trajectories: int
    draining: bool
    charged: _containers.MessageMap[str, Charged]
    hosts: _containers.MessageMap[str, HostLoad]
    restores: _containers.RepeatedCompositeFieldContainer[RestoreCost]
    def __init__(self, kinds: _Optional[_Mapping[str, KindStatistics]] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., isolation: _Optional[str] = ..., resources: _Optional[_Mapping[str, ResourceUsage]] = ..., started: _Optional[_Iterable[_Union[StartedAction, _Mapping]]] = ..., tenants: _Optional[_Mapping[str, TenantLoad]] = ..., policy: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., trajectories: _Optional[int] = ..., draining: bool = ..., charged: _Optional[_Mapping[str, Charged]] = ..., hosts: _Optional[_Mapping[str, HostLoad]] = ..., restores: _Optional[_Iterable[_Union[RestoreCost, _Mapping]]] = ...) -> None: ...
