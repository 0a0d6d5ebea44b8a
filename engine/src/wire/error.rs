//! Every refusal that a client can get, one constructor each.
//!
//! It is not about failures of our own process: those have no constructor besides
//! [`ApiError::internal`]. The invariant: status, `type`, `param` and `code` are what OpenAI sends
//! for the same fault, and the body always has all four keys, so that the SDKs raise the exception
//! class that their users wait for.
//!
//! Messages keep the phrases that clients search for (LiteLLM knows a too-long prompt by "This
//! model's maximum context length is"), and say where, what, and what to try.

use std::borrow::Cow;
use std::fmt;

use super::json;

/// OpenAI's `type` of nearly every refusal.
pub const INVALID_REQUEST: &str = "invalid_request_error";

/// A refusal: an HTTP status and the four members of OpenAI's error object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status code.
    pub status: u16,
    /// `error.type`.
    pub kind: &'static str,
    /// `error.param`: the path of the offending field, such as `messages[0].content`.
    pub param: Option<Cow<'static, str>>,
    /// `error.code`: a word that programs compare.
    pub code: Option<&'static str>,
    /// `error.message`: for people.
    pub message: String,
    /// What else the HTTP head of the answer must say.
    pub header: Option<ErrorHeader>,
}

/// Stands in a refusal for an integer of which only the magnitude is known.
pub(super) const BEYOND_64_BITS: &str = "an integer of more than 64 bits";

/// A header that belongs to a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorHeader {
    /// `allow`, with a 405: the methods that the route knows.
    Allow(&'static str),
    /// `retry-after`, with a 429 or 503: whole seconds.
    RetryAfter {
        /// Seconds to wait; SDKs honour up to two minutes.
        seconds: u32,
    },
}

/// A bound that a value broke.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound<T> {
    /// The value must be at least this.
    Min(T),
    /// The value must be at most this.
    Max(T),
}

impl ApiError {
    fn new(status: u16, kind: &'static str, message: String) -> Self {
        Self { status, kind, param: None, code: None, message, header: None }
    }

    fn bad_request(message: String) -> Self {
        Self::new(400, INVALID_REQUEST, message)
    }

    #[must_use]
    fn param(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.param = Some(param.into());
        self
    }

    #[must_use]
    fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    // ---- the body as a whole -------------------------------------------------------------

    /// The body is not JSON. `detail` is one line that says what and where.
    pub fn malformed_json(detail: &str) -> Self {
        Self::bad_request(format!(
            "We could not parse the JSON body of your request: {detail}. Send one JSON object in \
             UTF-8, for example with your HTTP library's own JSON option."
        ))
    }

    /// The body is JSON, but not an object; `got` is its type with its article.
    pub fn not_an_object(got: &str) -> Self {
        Self::bad_request(format!(
            "Invalid type for the request body: expected an object, but got {got} instead."
        ))
        .code("invalid_type")
    }

    /// The same member stands twice in the request body.
    pub fn duplicate_member(detail: &str) -> Self {
        Self::bad_request(format!(
            "We could not parse the JSON body of your request: {detail}. Keep one of the two."
        ))
    }

    // ---- one field -----------------------------------------------------------------------

    /// `model` is missing, null or empty: OpenAI's own wording, without param and code.
    pub fn missing_model() -> Self {
        Self::bad_request(
            "you must provide a model parameter (GET /v1/models lists the names)".to_owned(),
        )
    }

    /// A required field is missing or null.
    pub fn missing(param: impl Into<Cow<'static, str>>) -> Self {
        let param = param.into();
        Self::bad_request(format!("Missing required parameter: '{param}'."))
            .param(param)
            .code("missing_required_parameter")
    }

    /// A field has the wrong JSON type. `expected` and `got` carry their article: `a string`.
    pub fn invalid_type(param: impl Into<Cow<'static, str>>, expected: &str, got: &str) -> Self {
        let param = param.into();
        Self::bad_request(format!(
            "Invalid type for '{param}': expected {expected}, but got {got} instead."
        ))
        .param(param)
        .code("invalid_type")
    }

    /// An integer is out of range. `got` is printed as it was understood.
    pub fn integer_out_of_range(
        param: impl Into<Cow<'static, str>>,
        bound: Bound<i64>,
        got: impl fmt::Display,
    ) -> Self {
        Self::out_of_range(param.into(), "integer", bound, &got)
            .code(bound.pick("integer_below_min_value", "integer_above_max_value"))
    }

    /// A number is out of range.
    pub fn decimal_out_of_range(
        param: impl Into<Cow<'static, str>>,
        bound: Bound<f64>,
        got: f64,
    ) -> Self {
        // Digits beyond those that are known are not made up.
        let got = if got.abs() < 1e16 { format!("{got}") } else { format!("{got:?}") };
        Self::out_of_range(param.into(), "decimal", bound, &got)
            .code(bound.pick("decimal_below_min_value", "decimal_above_max_value"))
    }

    fn out_of_range<T: fmt::Display + Copy>(
        param: Cow<'static, str>,
        noun: &str,
        bound: Bound<T>,
        got: &dyn fmt::Display,
    ) -> Self {
        let (side, sign, limit) = match bound {
            Bound::Min(limit) => ("below minimum", ">=", limit),
            Bound::Max(limit) => ("above maximum", "<=", limit),
        };
        Self::bad_request(format!(
            "Invalid '{param}': {noun} {side} value. Expected a value {sign} {limit}, but got \
             {got} instead."
        ))
        .param(param)
    }

    /// An array has no element although one is needed.
    pub fn empty_array(param: impl Into<Cow<'static, str>>) -> Self {
        let param = param.into();
        Self::bad_request(format!(
            "Invalid '{param}': empty array. Expected an array with minimum length 1, but got an \
             empty array instead."
        ))
        .param(param)
        .code("empty_array")
    }

    /// An array (or object) has too many elements.
    pub fn array_too_long(param: impl Into<Cow<'static, str>>, max: usize, got: usize) -> Self {
        let param = param.into();
        Self::bad_request(format!(
            "Invalid '{param}': array too long. Expected an array with maximum length {max}, but \
             got an array with length {got} instead."
        ))
        .param(param)
        .code("array_above_max_length")
    }

    /// A string is empty although it says something by its presence.
    pub fn empty_string(param: impl Into<Cow<'static, str>>) -> Self {
        let param = param.into();
        Self::bad_request(format!(
            "Invalid '{param}': empty string. Expected a string with minimum length 1, but got an \
             empty string instead."
        ))
        .param(param)
        .code("empty_string")
    }

    /// A string has more characters than the API allows.
    pub fn string_too_long(param: impl Into<Cow<'static, str>>, max: usize, got: usize) -> Self {
        let param = param.into();
        Self::bad_request(format!(
            "Invalid '{param}': string too long. Expected a string with maximum length {max}, but \
             got a string with length {got} instead."
        ))
        .param(param)
        .code("string_above_max_length")
    }

    /// A word is not among those that the field takes.
    pub fn not_one_of(param: impl Into<Cow<'static, str>>, got: &str, allowed: &[&str]) -> Self {
        Self::bad_request(format!(
            "Invalid value: '{}'. Supported values are: {}.",
            Excerpt(got),
            AndList(allowed)
        ))
        .param(param)
        .code("invalid_value")
    }

    /// A value has the right type and is still wrong; `why` is a sentence.
    pub fn invalid_value(param: impl Into<Cow<'static, str>>, why: &str) -> Self {
        let param = param.into();
        Self::bad_request(format!("Invalid value for '{param}': {why}"))
            .param(param)
            .code("invalid_value")
    }

    /// A field was sent that only makes sense beside another: OpenAI sends no code here.
    pub fn only_with(param: &'static str, needs: &str) -> Self {
        Self::bad_request(format!(
            "The '{param}' parameter is only allowed when {needs}. Leave '{param}' out, or add \
             what it needs."
        ))
        .param(param)
    }

    /// Two fields contradict each other.
    pub fn contradiction(param: &'static str, why: &str) -> Self {
        Self::bad_request(format!("Invalid '{param}': {why}")).param(param)
    }

    /// A content part that a text-only model cannot read.
    pub fn media_part(param: String, part: &str) -> Self {
        Self::bad_request(format!(
            "Invalid content part: '{}' is not supported, because the models served here read \
             text only. Send parts of type 'text'.",
            Excerpt(part)
        ))
        .param(param)
        .code("invalid_value")
    }

    /// A valid format that this server cannot make.
    pub fn unsupported_format(param: &'static str) -> Self {
        Self::bad_request(format!(
            "Unsupported parameter: '{param}' is not supported yet by this server; ask for \
             {{\"type\":\"text\"}} or leave it out."
        ))
        .param(param)
        .code("unsupported_parameter")
    }

    /// A parameter that is known and for something that the models served here have not; `why` says
    /// what to send instead.
    pub fn unsupported_parameter(param: &'static str, why: &str) -> Self {
        Self::bad_request(format!("Unsupported parameter: '{param}' is not supported here: {why}"))
            .param(param)
            .code("unsupported_parameter")
    }

    /// With strict fields on: a top-level member that neither OpenAI nor vLLM knows.
    pub fn unknown_parameter(param: String) -> Self {
        Self::bad_request(format!("Unknown parameter: '{}'.", Excerpt(&param)))
            .param(param)
            .code("unknown_parameter")
    }

    // ---- model and prompt ----------------------------------------------------------------

    /// No such model is served.
    pub fn model_not_found(model: &str) -> Self {
        let mut error = Self::new(
            404,
            INVALID_REQUEST,
            format!(
                "The model `{}` does not exist or you do not have access to it. GET /v1/models \
                 lists the models served here.",
                Excerpt(model)
            ),
        );
        error.param = Some(Cow::Borrowed("model"));
        error.code("model_not_found")
    }

    /// `previous_response_id` names no response that is kept here.
    pub fn previous_response_not_found(id: &str) -> Self {
        Self::bad_request(format!(
            "Previous response with id '{}' not found: it was never made here, not stored, deleted, \
             or has made room for newer ones.",
            Excerpt(id)
        ))
        .param("previous_response_id")
        .code("previous_response_not_found")
    }

    /// An `item_reference` names no item that is kept here.
    pub fn item_not_found(at: usize, id: &str) -> Self {
        Self::bad_request(format!(
            "Item with id '{}' not found. Items are kept with their responses; send the whole item \
             instead of its reference.",
            Excerpt(id)
        ))
        .param(format!("input[{at}].id"))
        .code("item_not_found")
    }

    /// A page of a list is to begin behind an item that is not in it.
    pub fn item_not_found_after(id: &str) -> Self {
        Self::bad_request(format!(
            "Item with id '{}' not found. Send the 'last_id' of the page before.",
            Excerpt(id)
        ))
        .param("after")
        .code("item_not_found")
    }

    /// A response was made while its client waited, so that nothing is left to be cancelled.
    pub fn not_in_background() -> Self {
        Self::bad_request("Cannot cancel a synchronous response.".to_owned())
    }

    /// `GET` or `DELETE` of a response that is not kept here.
    pub fn response_not_found(id: &str) -> Self {
        let mut error = Self::new(
            404,
            INVALID_REQUEST,
            format!("Response with id '{}' not found.", Excerpt(id)),
        );
        error.param = Some(Cow::Borrowed("id"));
        error.code("response_not_found")
    }

    /// An adapter cannot be loaded: vLLM's `InvalidUserInput`. `why` is a sentence.
    pub fn adapter_refused(why: &str) -> Self {
        let mut error = Self::new(400, "InvalidUserInput", why.to_owned());
        error.param = Some(Cow::Borrowed("lora_name"));
        error.code("invalid_value")
    }

    /// No adapter of that name is loaded.
    pub fn adapter_not_found(name: &str) -> Self {
        let mut error = Self::new(
            404,
            "NotFoundError",
            format!("The lora adapter '{}' cannot be found.", Excerpt(name)),
        );
        error.param = Some(Cow::Borrowed("lora_name"));
        error.code("adapter_not_found")
    }

    /// The messages alone, or with the limit on the answer, exceed the context.
    pub fn context_length_exceeded(context: u32, prompt: u32, completion: Option<u32>) -> Self {
        Self::context_length_exceeded_by("messages", context, prompt, completion)
    }

    /// The same of what stands in another field.
    pub fn context_length_exceeded_by(
        field: &'static str,
        context: u32,
        prompt: u32,
        completion: Option<u32>,
    ) -> Self {
        let what = match field {
            "messages" | "input" => field,
            _ => "prompt",
        };
        // A limit beyond 32 bits was kept as the largest of them.
        let more = if completion == Some(u32::MAX) { " or more" } else { "" };
        let message = match completion {
            None => format!(
                "This model's maximum context length is {context} tokens. However, your {what} \
                 resulted in {prompt} tokens{}. Please reduce the length of the {what}.",
                if prompt > context { "" } else { ", which leaves none for an answer" }
            ),
            Some(completion) => format!(
                "This model's maximum context length is {context} tokens. However, you requested \
                 {}{more} tokens ({prompt} in the {what}, {completion}{more} in the completion). \
                 Please reduce the length of the {what} or completion.",
                u64::from(prompt) + u64::from(completion)
            ),
        };
        Self::bad_request(message).param(field).code("context_length_exceeded")
    }

    // ---- access --------------------------------------------------------------------------

    /// Keys are on, and the request has none.
    pub fn missing_api_key() -> Self {
        Self::new(
            401,
            INVALID_REQUEST,
            "You didn't provide an API key. Send it in the header 'Authorization: Bearer KEY'."
                .to_owned(),
        )
    }

    /// Keys are on, and this one is not among them. Shows the ends of the key only.
    pub fn wrong_api_key(key: &str) -> Self {
        let shown = match (key.get(..4), key.len().checked_sub(4).and_then(|at| key.get(at..))) {
            (Some(head), Some(tail)) if key.len() > 12 => format!("{head}***{tail}"),
            _ => "***".to_owned(),
        };
        Self::new(401, INVALID_REQUEST, format!("Incorrect API key provided: {shown}."))
            .code("invalid_api_key")
    }

    // ---- HTTP ----------------------------------------------------------------------------

    /// No such route.
    pub fn unknown_url(method: &str, path: &str) -> Self {
        Self::new(
            404,
            INVALID_REQUEST,
            format!("Invalid URL ({} {})", Excerpt(method), Excerpt(path)),
        )
        .code("unknown_url")
    }

    /// The route exists, but not with this method. `allow` becomes the `allow` header.
    pub fn method_not_allowed(method: &str, path: &str, allow: &'static str) -> Self {
        let mut error = Self::new(
            405,
            INVALID_REQUEST,
            format!(
                "Not allowed to {} on {} (HINT: Perhaps you meant to use a different HTTP method: \
                 {allow})",
                Excerpt(method),
                Excerpt(path)
            ),
        );
        error.header = Some(ErrorHeader::Allow(allow));
        error.code("method_not_supported")
    }

    /// The body is of a kind that cannot be JSON, and did not parse as JSON either.
    pub fn unsupported_media_type(content_type: &str) -> Self {
        Self::new(
            415,
            INVALID_REQUEST,
            format!(
                "Unsupported Content-Type: '{}'. Send 'application/json'.",
                Excerpt(content_type)
            ),
        )
        .code("unsupported_content_type")
    }

    /// The body has a coding (gzip, ...) that is not undone here.
    pub fn unsupported_content_encoding(encoding: &str) -> Self {
        Self::new(
            415,
            INVALID_REQUEST,
            format!(
                "Unsupported Content-Encoding: '{}'. Send the body as it is.",
                Excerpt(encoding)
            ),
        )
        .code("unsupported_content_encoding")
    }

    /// The body is longer than the limit.
    pub fn body_too_large(limit_bytes: u64) -> Self {
        Self::new(
            413,
            INVALID_REQUEST,
            format!("Request body too large: at most {limit_bytes} bytes are accepted."),
        )
        .code("request_too_large")
    }

    /// The request line and headers are longer than the limit.
    pub fn head_too_large(limit_bytes: u64) -> Self {
        Self::new(
            431,
            INVALID_REQUEST,
            format!("Request head too large: at most {limit_bytes} bytes of headers are accepted."),
        )
        .code("headers_too_large")
    }

    /// The URL alone is longer than the limit.
    pub fn url_too_long(limit_bytes: u64) -> Self {
        Self::new(
            414,
            INVALID_REQUEST,
            format!("URL too long: at most {limit_bytes} bytes are accepted."),
        )
        .code("url_too_long")
    }

    /// The bytes are not HTTP; the connection is closed after this. `why` is a sentence.
    pub fn malformed_http(why: &str) -> Self {
        Self::bad_request(format!("Malformed HTTP request: {why}"))
    }

    /// An `expect` header with something other than `100-continue`.
    pub fn expectation_failed(expect: &str) -> Self {
        Self::new(
            417,
            INVALID_REQUEST,
            format!(
                "Unsupported expectation: '{}'. Only '100-continue' is known.",
                Excerpt(expect)
            ),
        )
    }

    /// A version of HTTP that is not spoken here.
    pub fn http_version_not_supported() -> Self {
        Self::new(
            505,
            INVALID_REQUEST,
            "HTTP version not supported: use HTTP/1.1 or HTTP/1.0.".to_owned(),
        )
    }

    /// Head or body did not arrive in time.
    pub fn request_timeout(seconds: u64) -> Self {
        Self::new(
            408,
            INVALID_REQUEST,
            format!("Request timeout: the request was not complete after {seconds} s."),
        )
        .code("request_timeout")
    }

    // ---- load ----------------------------------------------------------------------------

    /// The model's queue is full (vLLM's `max_num_queued_reqs`): try again.
    pub fn overloaded(retry_after_seconds: u32) -> Self {
        let mut error = Self::new(
            503,
            "server_error",
            "The server is overloaded: the model's queue is full. Please try again later."
                .to_owned(),
        );
        error.header = Some(ErrorHeader::RetryAfter { seconds: retry_after_seconds });
        error
    }

    /// The simulated GPU has crashed and is not up again.
    pub fn down(retry_after_seconds: u32) -> Self {
        let mut error = Self::new(
            503,
            "server_error",
            "The model is not available: its engine has crashed and is starting again. Please try \
             again later."
                .to_owned(),
        );
        error.header = Some(ErrorHeader::RetryAfter { seconds: retry_after_seconds });
        error
    }

    /// The simulated GPU crashed while it worked on the request.
    pub fn crashed() -> Self {
        Self::new(
            500,
            "server_error",
            "The engine crashed while processing your request. Please try again.".to_owned(),
        )
    }

    /// The service has no capacity for the model.
    pub fn no_capacity(retry_after_seconds: u32) -> Self {
        let mut error = Self::new(
            503,
            "server_error",
            "The model is at capacity. Please try again later.".to_owned(),
        );
        error.header = Some(ErrorHeader::RetryAfter { seconds: retry_after_seconds });
        error
    }

    /// The server still loads its models.
    pub fn starting(retry_after_seconds: u32) -> Self {
        let mut error = Self::new(
            503,
            "server_error",
            "The server is starting: the model is being loaded. Please try again later.".to_owned(),
        );
        error.header = Some(ErrorHeader::RetryAfter { seconds: retry_after_seconds });
        error
    }

    /// More connections than the server takes at a time.
    pub fn too_many_connections(limit: usize) -> Self {
        let mut error = Self::new(
            503,
            "server_error",
            format!(
                "The server is overloaded: {limit} connections are open. Please try again later."
            ),
        );
        error.header = Some(ErrorHeader::RetryAfter { seconds: 1 });
        error
    }

    /// `POST /sleep` came, and `POST /wake_up` not yet.
    pub fn asleep() -> Self {
        let mut error =
            Self::new(503, "server_error", "The engine is asleep: POST /wake_up first.".to_owned());
        error.header = Some(ErrorHeader::RetryAfter { seconds: 1 });
        error
    }

    /// The server drains before it stops.
    pub fn shutting_down() -> Self {
        let mut error = Self::new(
            503,
            "server_error",
            "The server is shutting down. Please try again later.".to_owned(),
        );
        error.header = Some(ErrorHeader::RetryAfter { seconds: 1 });
        error
    }

    /// A request that an engine can never hold: its KV cache is smaller than the job.
    pub fn never_fits(kv_tokens: u64, needed: u64) -> Self {
        Self::bad_request(format!(
            "This request needs room for {needed} tokens, but the whole KV cache of the model \
             holds {kv_tokens}. Please reduce the length of the messages or completion."
        ))
        .param("messages")
        .code("context_length_exceeded")
    }

    /// A fault of our own.
    pub fn internal() -> Self {
        Self::new(
            500,
            "server_error",
            "The server had an error while processing your request.".to_owned(),
        )
    }

    // ---- rendering -----------------------------------------------------------------------

    /// The error object as it stands in a body: `{"error":{...}}`, always with all four keys.
    pub fn body(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.message.len());
        self.write(&mut out);
        out
    }

    /// [`Self::body`] with another `type` and `code`.
    pub fn body_named(&self, kind: &str, code: Option<&str>) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.message.len());
        self.write_named(kind, code, &mut out);
        out
    }

    /// The error object as vLLM writes it: a class name for `type`, and the status as `code`.
    pub fn vllm_body(&self) -> Vec<u8> {
        let kind = match self.status {
            404 => "NotFoundError",
            400..500 => "BadRequestError",
            503 => "ServiceUnavailableError",
            _ => "InternalServerError",
        };
        let mut out = Vec::with_capacity(128 + self.message.len());
        out.extend_from_slice(b"{\"error\":{\"message\":");
        json::push_string(&mut out, &self.message);
        out.extend_from_slice(b",\"type\":");
        json::push_string(&mut out, kind);
        out.extend_from_slice(b",\"param\":");
        json::push_optional_string(&mut out, self.param.as_deref());
        out.extend_from_slice(format!(",\"code\":{}}}}}", self.status).as_bytes());
        out
    }

    /// Appends [`Self::body`] to `out`: for an error event in a stream.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_named(self.kind, self.code, out);
    }

    fn write_named(&self, kind: &str, code: Option<&str>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"error\":{\"message\":");
        json::push_string(out, &self.message);
        out.extend_from_slice(b",\"type\":");
        json::push_string(out, kind);
        out.extend_from_slice(b",\"param\":");
        json::push_optional_string(out, self.param.as_deref());
        out.extend_from_slice(b",\"code\":");
        json::push_optional_string(out, code);
        out.extend_from_slice(b"}}");
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status, self.code.unwrap_or(self.kind), self.message)
    }
}

impl std::error::Error for ApiError {}

impl<T> Bound<T> {
    fn pick<U>(&self, min: U, max: U) -> U {
        match self {
            Self::Min(_) => min,
            Self::Max(_) => max,
        }
    }
}

/// A client's text inside a message: at most so many characters, then an ellipsis.
struct Excerpt<'a>(&'a str);

const EXCERPT_CHARS: usize = 200;

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(EXCERPT_CHARS) {
            None => f.write_str(self.0),
            Some((end, _)) => write!(f, "{}...", &self.0[..end]),
        }
    }
}

/// `'a', 'b', and 'c'`.
struct AndList<'a>(&'a [&'a str]);

impl fmt::Display for AndList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.len().saturating_sub(1);
        for (i, word) in self.0.iter().enumerate() {
            let before = match i {
                0 => "",
                _ if i < last => ", ",
                1 => " and ",
                _ => ", and ",
            };
            write!(f, "{before}'{word}'")?;
        }
        Ok(())
    }
}
