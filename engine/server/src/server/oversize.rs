//! Messages beyond the decoder's limit get the answer that the API promises for what is too large.
//!
//! tonic refuses such a message before any service sees it, with OUT_OF_RANGE, which in our API
//! means a revision that can't be read. Here that answer becomes the one of the port: on that of
//! our own clients INVALID_ARGUMENT with the limits and their flags.

use std::sync::Arc;

use tonic::Status;
use tonic::codegen::http::{HeaderMap, Response};

use crate::config::Limits;

/// What tonic 0.14 begins the message with; a test of real processes sends such a message.
const TONIC_MESSAGE: &str = "Error, decoded message length too large";

/// The answer on the port of our own clients, which names the limits.
pub(super) fn too_large(limits: &Limits) -> Status {
    Status::invalid_argument(format!(
        "the request is larger than any this member takes: keys up to {} bytes (--max-key-bytes), \
         values up to {} bytes (--max-value-bytes)",
        limits.max_key_bytes, limits.max_value_bytes
    ))
}

/// Has oversized messages answered so.
pub(super) fn answering<B>(answer: Status) -> impl Fn(Response<B>) -> Response<B> + Clone {
    let answer = Arc::new(answer);
    move |mut response| {
        correct(response.headers_mut(), &answer);
        response
    }
}

/// An error that was found before any answer began is in the headers alone.
fn correct(headers: &mut HeaderMap, answer: &Status) {
    if headers
        .get(Status::GRPC_STATUS)
        .is_none_or(|code| code.as_bytes() != b"11")
    {
        return;
    }
    let oversized = Status::from_header_map(headers)
        .is_some_and(|status| status.message().starts_with(TONIC_MESSAGE));
    if oversized {
        // Only fails for a message that no header can hold; then tonic's own answer stays.
        let _ = answer.add_header(headers);
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn check(status: &Status, expect: Code) {
        let mut headers = HeaderMap::new();
        status.add_header(&mut headers).unwrap();
        correct(&mut headers, &Status::invalid_argument("too large"));
        assert_eq!(Status::from_header_map(&headers).unwrap().code(), expect);
    }

    #[test]
    fn only_the_decoders_refusal_is_corrected() {
        check(
            &Status::out_of_range(format!("{TONIC_MESSAGE}: found 9")),
            Code::InvalidArgument,
        );
        check(
            &Status::out_of_range("revision 5 is compacted"),
            Code::OutOfRange,
        );
        check(&Status::unavailable(TONIC_MESSAGE), Code::Unavailable);
    }
}
