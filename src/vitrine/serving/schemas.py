"""The schemas of all responses, as /openapi.json and /docs show them."""

from pydantic import BaseModel, Field


class Problem(BaseModel):
    """The reason why a request was refused."""

    error: str = Field(description="One sentence: what is wrong, and what to do.")


class Answer(BaseModel):
    """One class and its probability."""

    label: str
    number: int = Field(description="Index of the class, from 0.")
    probability: float


class Predicted(BaseModel):
    """The most likely classes."""

    model: str
    answers: list[Answer] = Field(description="The most likely classes, most likely first.")
    number: float | None = Field(
        default=None, description="The predicted number, from a model of numbers; answers are then empty."
    )
    interval: list[float] | None = Field(
        default=None, description="Range that contains the true number with the requested coverage, or 95 %."
    )
    familiarity: float | None = Field(
        default=None,
        description="Share of held-out images that are at least as far from the training images; null if unknown.",
    )
    none_of_these: bool | None = Field(
        default=None,
        description="Whether the picture is farther from the training images than 95 % of the held-out ones, or "
        "than all of them if they are fewer than 19.",
    )
    prediction_set: list[str] | None = Field(
        default=None, description="Classes that contain the true one with the requested coverage."
    )
    labels: list[str] | None = Field(
        default=None,
        description="If a picture may have several labels, those with a probability of at least 0.5.",
    )
    logits: list[float] | None = Field(default=None, description="All logits in order, if requested.")
    size: list[int] = Field(description="Height and width of the model's input in pixels.")
    milliseconds: float = Field(description="From the end of the upload to the result.")


class Covering(BaseModel):
    """One class of a mask."""

    label: str
    number: int = Field(description="Its value in the PNG.")
    share: float = Field(description="Share of the picture's pixels.")
    colour: str = Field(description="Its colour in the PNG, such as #800000.")
    is_background: bool = Field(description="Whether the PNG is transparent there.")


class Mask(BaseModel):
    """The class of every pixel."""

    png: str = Field(description="A palette PNG of class numbers in base64; its background is transparent.")
    size: list[int] = Field(
        description="Height and width: the picture's, or smaller ones with at most two million pixels."
    )
    classes: list[Covering] = Field(description="The classes that occur, largest first.")


class Box(BaseModel):
    """One object that was found."""

    label: str
    number: int = Field(description="Index of the class, from 0.")
    score: float
    box: list[float] = Field(description="Left, top, right and bottom in pixels of the upright picture.")
    colour: str = Field(description="The colour that the page draws it in.")
    mask: str | None = Field(
        description="The mask in the box as a PNG in base64, transparent elsewhere; null for a model of boxes."
    )


class Located(BaseModel):
    """The masks, boxes or masks of objects of a picture."""

    model: str
    answers: str = Field(description="masks, boxes or instances (masks of objects)")
    picture: list[int] = Field(description="Height and width of the upright picture in pixels.")
    mask: Mask | None
    boxes: list[Box] | None = Field(description="At most 100 objects, best first.")
    milliseconds: float


class Embedded(BaseModel):
    """The input of the classification head."""

    model: str
    features: list[float]
    milliseconds: float


class Matrix(BaseModel):
    """Attention between all patches of one layer."""

    shape: list[int] = Field(
        description="Heads, queries (the output first, then all patches), keys (patches)."
    )
    maximum: list[list[float]] = Field(
        description="Heads x queries: the attention that the value 255 means in each row."
    )
    data: str = Field(description="Bytes of this shape in base64.")


class Layer(BaseModel):
    """The attention of one layer."""

    layer: int
    heads: list[list[list[float]]] = Field(
        description="Heads x rows x columns: attention from the output to each patch."
    )
    matrix: Matrix | None = None


class Explained(BaseModel):
    """The attention of the model in a picture."""

    model: str
    grid: list[int] = Field(description="Rows and columns of patches.")
    num_layers: int
    num_heads: int
    seen_from: str = Field(description="Token whose attention is shown.")
    rollout: list[list[float]] = Field(
        description="Attention rollout: influence of each patch on the output through all layers."
    )
    distance: list[list[float]] = Field(description="Layers x heads: mean attention distance in pixels.")
    layers: list[Layer]
    milliseconds: float


class Picture(BaseModel):
    """An array of bytes."""

    shape: list[int]
    data: str = Field(description="Bytes of this shape in base64.")


class Figures(BaseModel):
    """The figures of a model that need no picture."""

    model: str
    filters: Picture = Field(description="Principal components of the embedding filters, RGB; grey is zero.")
    positions: Picture | None = Field(
        description="Cosine similarity of each position embedding with all others: 0 stands for -1, 255 for 1."
    )
    missing: str | None = Field(description="Why there are no position embeddings.")


class ServedModel(BaseModel):
    """One served model."""

    name: str
    title: str = Field(description="The display name.")
    answers: str = Field(description="classes (/predict); masks, boxes or instances (/locate)")
    variant: str | None
    backend: str
    image_size: list[int]
    rule: str = Field(
        description="squash: the whole picture, stretched to the input size; shorter: a centre crop."
    )
    crop_fraction: float
    classes: list[str] | None = Field(description="null if the model has no classification head.")
    width: int = Field(description="Number of features that /embed returns.")
    parameters: int
    grid: list[int] | None = Field(description="Rows and columns of patches; null for a ResNet.")
    patch: list[int] | None
    num_layers: int | None
    num_heads: int | None
    is_multi_label: bool
    notes: list[str]


class Limited(BaseModel):
    """The server's limits."""

    upload_bytes: int
    pixels: int = Field(description="Maximum pixels of a JPEG.")
    whole_pixels: int = Field(description="Maximum pixels of a picture in another format.")
    waiting: int
    target_seconds: float


class Served(BaseModel):
    """All served models, and the limits."""

    models: list[ServedModel]
    awaited: list[str] = Field(
        description="Models whose runs have no weights yet; each is served as soon as it has."
    )
    limits: Limited
    run: str | None = Field(description="Name of the training run whose records /run returns.")
    version: str


class Run(BaseModel):
    """New records of a training run."""

    name: str
    is_finished: bool
    silent_seconds: float | None = Field(
        description="Seconds since the last record; long if the run was stopped."
    )
    records: list[dict[str, float | int | str | None]]
    next: int = Field(description="Pass it as `after` to get the records that follow.")


class Health(BaseModel):
    """Whether the process responds."""

    status: str


class Readiness(BaseModel):
    """Whether requests are accepted, and how many wait."""

    status: str
    waiting: int
    expected_wait_seconds: float
    target_seconds: float
