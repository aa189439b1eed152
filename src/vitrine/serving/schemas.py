"""The shapes of all answers, as the OpenAPI document and /docs show them."""

from pydantic import BaseModel, Field


class Problem(BaseModel):
    """Why there is no answer."""

    error: str = Field(description="One sentence: what was wrong, what was given, what would do.")


class Answer(BaseModel):
    """One class."""

    label: str
    number: int = Field(description="Its place among the logits, from 0.")
    probability: float


class Predicted(BaseModel):
    """The most likely classes."""

    model: str
    answers: list[Answer] = Field(description="The most likely classes, the best first.")
    logits: list[float] | None = Field(default=None, description="All logits in order, if asked for.")
    size: list[int] = Field(description="Height and width that the model saw.")
    milliseconds: float = Field(description="From the last byte of the upload to the answer.")


class Embedded(BaseModel):
    """The input of the model's head."""

    model: str
    features: list[float]
    milliseconds: float


class Matrix(BaseModel):
    """Attention between all patches of one layer."""

    shape: list[int] = Field(
        description="Heads, queries (the output first, then every patch), keys (patches)."
    )
    maximum: list[list[float]] = Field(description="Heads x queries: what 255 stands for in each row.")
    data: str = Field(description="Bytes of that shape in base64.")


class Layer(BaseModel):
    """One layer's attention."""

    layer: int
    heads: list[list[list[float]]] = Field(description="Heads x rows x columns, as seen from the output.")
    matrix: Matrix | None = None


class Explained(BaseModel):
    """What the model attends to in a picture."""

    model: str
    grid: list[int] = Field(description="Rows and columns of patches.")
    num_layers: int
    num_heads: int
    seen_from: str
    rollout: list[list[float]] = Field(
        description="How much of the output comes from each patch through all layers."
    )
    distance: list[list[float]] = Field(
        description="Layers x heads: mean distance in pixels that attention reaches in this picture."
    )
    layers: list[Layer]
    milliseconds: float


class Picture(BaseModel):
    """An array of bytes."""

    shape: list[int]
    data: str = Field(description="Bytes of that shape in base64.")


class Figures(BaseModel):
    """What can be seen of a model without a picture."""

    model: str
    filters: Picture = Field(description="Principal components of the first kernel, RGB, grey is zero.")
    positions: Picture | None = Field(
        description="Cosine of each position with all others: 0 stands for -1, 255 for 1."
    )
    missing: str | None = Field(description="Why there are no positions.")


class ServedModel(BaseModel):
    """One model that answers here."""

    name: str
    variant: str | None
    backend: str
    image_size: list[int]
    rule: str = Field(description="squash: the whole picture; shorter: its centre in its own shape.")
    crop_fraction: float
    classes: list[str] | None = Field(description="None where the model has no head.")
    width: int = Field(description="Number of features that /embed returns.")
    parameters: int
    grid: list[int] | None = Field(description="Rows and columns of patches; none in a ResNet.")
    patch: list[int] | None
    num_layers: int | None
    num_heads: int | None
    is_multi_label: bool
    notes: list[str]


class Limited(BaseModel):
    """What the server accepts."""

    upload_bytes: int
    pixels: int = Field(description="Of a JPEG.")
    whole_pixels: int = Field(description="Of any other kind of picture.")
    waiting: int
    target_seconds: float


class Served(BaseModel):
    """All models, and the limits."""

    models: list[ServedModel]
    awaited: list[str] = Field(
        description="Names of those whose runs have no weights yet; they join the models by themselves."
    )
    limits: Limited
    run: str | None = Field(description="Name of the training run whose curves /run gives.")
    version: str


class Run(BaseModel):
    """New records of a training run."""

    name: str
    is_finished: bool
    silent_seconds: float | None = Field(
        description="Since its last record; a run that was stopped is silent for long."
    )
    records: list[dict[str, float | int | str | None]]
    next: int = Field(description="What to send as `after` to hear of what comes next.")


class Health(BaseModel):
    """Whether the process answers."""

    status: str


class Readiness(BaseModel):
    """Whether requests are taken, and what waits."""

    status: str
    waiting: int
    expected_wait_seconds: float
    target_seconds: float
