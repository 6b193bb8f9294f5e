//! One call of a sequence, and sequences as text.
//!
//! A line holds the call's name, the number of its watch stream where it has one, and the bytes of
//! its message in hexadecimal digits: what a replay sends is what was sent, unknown enums and empty
//! unions included. What follows `#` says the same to people, and is not read.

use std::fmt;

use anyhow::{Context as _, Result, bail};
use prost::Message;

use crate::pb;

/// A call of the API.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    Range(pb::RangeRequest),
    Put(pb::PutRequest),
    Delete(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(pb::CompactionRequest),
    /// A message on the watch stream of this number, which begins with its first message.
    Watch {
        stream: usize,
        request: pb::WatchRequest,
    },
    Grant(pb::LeaseGrantRequest),
    Revoke(pb::LeaseRevokeRequest),
    /// One message on a stream of its own.
    KeepAlive(pb::LeaseKeepAliveRequest),
    TimeToLive(pb::LeaseTimeToLiveRequest),
    Leases(pb::LeaseLeasesRequest),
    Members(pb::MemberListRequest),
    Status(pb::StatusRequest),
    Alarm(pb::AlarmRequest),
}

impl Operation {
    /// As lines of text call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Range(_) => "range",
            Self::Put(_) => "put",
            Self::Delete(_) => "delete",
            Self::Txn(_) => "txn",
            Self::Compact(_) => "compact",
            Self::Watch { .. } => "watch",
            Self::Grant(_) => "grant",
            Self::Revoke(_) => "revoke",
            Self::KeepAlive(_) => "keep-alive",
            Self::TimeToLive(_) => "time-to-live",
            Self::Leases(_) => "leases",
            Self::Members(_) => "members",
            Self::Status(_) => "status",
            Self::Alarm(_) => "alarm",
        }
    }

    /// Whether watches must have caught up before it: how far they are decides what it does to
    /// them.
    #[must_use]
    pub fn meets_watches(&self) -> bool {
        use pb::watch_request::RequestUnion;
        match self {
            Self::Compact(_) => true,
            Self::Watch { request, .. } => {
                matches!(request.request_union, Some(RequestUnion::CancelRequest(_)))
            }
            _ => false,
        }
    }

    fn message(&self) -> Vec<u8> {
        match self {
            Self::Range(request) => request.encode_to_vec(),
            Self::Put(request) => request.encode_to_vec(),
            Self::Delete(request) => request.encode_to_vec(),
            Self::Txn(request) => request.encode_to_vec(),
            Self::Compact(request) => request.encode_to_vec(),
            Self::Watch { request, .. } => request.encode_to_vec(),
            Self::Grant(request) => request.encode_to_vec(),
            Self::Revoke(request) => request.encode_to_vec(),
            Self::KeepAlive(request) => request.encode_to_vec(),
            Self::TimeToLive(request) => request.encode_to_vec(),
            Self::Leases(request) => request.encode_to_vec(),
            Self::Members(request) => request.encode_to_vec(),
            Self::Status(request) => request.encode_to_vec(),
            Self::Alarm(request) => request.encode_to_vec(),
        }
    }

    fn parse(line: &str) -> Result<Self> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().context("a line has the name of a call")?;
        let stream = match name {
            "watch" => words.next().context("a watch has a stream")?.parse()?,
            _ => 0,
        };
        let digits = words.next().context("a call has a message")?;
        let bytes = &from_digits(digits)?[..];
        Ok(match name {
            "range" => Self::Range(Message::decode(bytes)?),
            "put" => Self::Put(Message::decode(bytes)?),
            "delete" => Self::Delete(Message::decode(bytes)?),
            "txn" => Self::Txn(Message::decode(bytes)?),
            "compact" => Self::Compact(Message::decode(bytes)?),
            "watch" => Self::Watch {
                stream,
                request: Message::decode(bytes)?,
            },
            "grant" => Self::Grant(Message::decode(bytes)?),
            "revoke" => Self::Revoke(Message::decode(bytes)?),
            "keep-alive" => Self::KeepAlive(Message::decode(bytes)?),
            "time-to-live" => Self::TimeToLive(Message::decode(bytes)?),
            "leases" => Self::Leases(Message::decode(bytes)?),
            "members" => Self::Members(Message::decode(bytes)?),
            "status" => Self::Status(Message::decode(bytes)?),
            "alarm" => Self::Alarm(Message::decode(bytes)?),
            other => bail!("there is no call {other}"),
        })
    }
}

/// The line without its remark.
impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())?;
        if let Self::Watch { stream, .. } = self {
            write!(formatter, " {stream}")?;
        }
        let bytes = self.message();
        if bytes.is_empty() {
            return formatter.write_str(" -");
        }
        formatter.write_str(" ")?;
        bytes
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// A sequence as text that [`from_text`] reads.
#[must_use]
pub fn to_text(operations: &[Operation]) -> String {
    let lines = operations.iter().map(|operation| {
        let remark = shortened(&format!("{operation:?}"), REMARK_CHARS_MAX);
        format!("{operation}  # {remark}\n")
    });
    lines.collect()
}

const REMARK_CHARS_MAX: usize = 1_000;

/// The sequence that a text holds. Empty lines and what follows `#` count for nothing.
///
/// # Errors
/// A line is not what [`to_text`] writes; the error says which.
pub fn from_text(text: &str) -> Result<Vec<Operation>> {
    let lines = text.lines().enumerate().map(|(place, line)| {
        let call = line.split('#').next().unwrap_or_default().trim();
        (place + 1, call)
    });
    lines
        .filter(|(_, call)| !call.is_empty())
        .map(|(number, call)| Operation::parse(call).with_context(|| format!("line {number}")))
        .collect()
}

/// The first characters of a text that is too long to be read.
pub(crate) fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((cut, _)) => format!("{}… ({} bytes)", &text[..cut], text.len()),
        None => text.to_owned(),
    }
}

fn from_digits(digits: &str) -> Result<Vec<u8>> {
    if digits == "-" {
        return Ok(Vec::new());
    }
    let digits = digits.as_bytes();
    if !digits.len().is_multiple_of(2) {
        bail!("an odd number of hexadecimal digits");
    }
    let pairs = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair)?;
        Ok(u8::from_str_radix(pair, 16)?)
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Calls, Mood, sequence};

    #[test]
    fn a_sequence_is_the_same_after_it_was_text() {
        for mood in [Mood::Valid, Mood::Hostile] {
            let operations = sequence(7, mood, 2_000, Calls::ALL);
            let text = to_text(&operations);
            assert_eq!(from_text(&text).unwrap(), operations);
        }
    }

    #[test]
    fn remarks_and_empty_lines_count_for_nothing() {
        let text = "# written by hand\n\n  leases -\nput 0a0161 # a\n";
        let operations = from_text(text).unwrap();
        assert_eq!(operations.len(), 2);
        let Operation::Put(put) = &operations[1] else {
            panic!("{operations:?}");
        };
        assert_eq!(put.key, "a");
    }

    #[test]
    fn a_line_that_is_no_call_is_named() {
        for (text, what) in [
            ("put 0a0161\nputt 0a0161", "line 2"),
            ("put 0a016", "line 1"),
            ("watch x -", "line 1"),
        ] {
            let error = format!("{:#}", from_text(text).unwrap_err());
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
