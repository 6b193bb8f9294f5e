//! One call of a sequence, and sequences as text.
//!
//! A line holds the call's name, the number of its watch stream where it has one, and the bytes of
//! its message in hexadecimal digits: what a replay sends is what was sent, unknown enums and empty
//! unions included. What follows `#` says the same to people, and is not read.

use std::fmt;

use anyhow::{Context as _, Result, bail};
use prost::Message;

use crate::pb;
use crate::pb::watch_request::RequestUnion;

/// Every call but those of watches: a row each, with its name in lines of text and its message.
macro_rules! calls {
    ($($(#[$doc:meta])* $call:ident($request:ty) = $name:literal,)*) => {
        /// A call of the API.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Operation {
            $($(#[$doc])* $call($request),)*
            /// A message on the watch stream of this number, which begins with its first message.
            Watch {
                stream: usize,
                request: pb::WatchRequest,
            },
        }

        impl Operation {
            /// As lines of text call it.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$call(_) => $name,)*
                    Self::Watch { .. } => WATCH,
                }
            }

            fn message(&self) -> Vec<u8> {
                match self {
                    $(Self::$call(request) => request.encode_to_vec(),)*
                    Self::Watch { request, .. } => request.encode_to_vec(),
                }
            }

            fn decode(name: &str, stream: usize, bytes: &[u8]) -> Result<Self> {
                Ok(match name {
                    $($name => Self::$call(Message::decode(bytes)?),)*
                    WATCH => Self::Watch {
                        stream,
                        request: Message::decode(bytes)?,
                    },
                    other => bail!("there is no call {other}"),
                })
            }
        }
    };
}

const WATCH: &str = "watch";

calls! {
    Range(pb::RangeRequest) = "range",
    /// The same in pieces, of etcd 3.7.
    RangeStream(pb::RangeRequest) = "range-stream",
    Put(pb::PutRequest) = "put",
    Delete(pb::DeleteRangeRequest) = "delete",
    Txn(pb::TxnRequest) = "txn",
    Compact(pb::CompactionRequest) = "compact",
    Grant(pb::LeaseGrantRequest) = "grant",
    Revoke(pb::LeaseRevokeRequest) = "revoke",
    /// One message on a stream of its own.
    KeepAlive(pb::LeaseKeepAliveRequest) = "keep-alive",
    TimeToLive(pb::LeaseTimeToLiveRequest) = "time-to-live",
    Leases(pb::LeaseLeasesRequest) = "leases",
    Lock(pb::LockRequest) = "lock",
    Unlock(pb::UnlockRequest) = "unlock",
    Campaign(pb::CampaignRequest) = "campaign",
    /// The leader's revision may be [`AS_CAMPAIGNED`].
    Proclaim(pb::ProclaimRequest) = "proclaim",
    Leader(pb::LeaderRequest) = "leader",
    /// What is told first, on a stream of its own; nothing is asked while nobody leads.
    Observe(pb::LeaderRequest) = "observe",
    /// The leader's revision may be [`AS_CAMPAIGNED`].
    Resign(pb::ResignRequest) = "resign",
    Members(pb::MemberListRequest) = "members",
    Status(pb::StatusRequest) = "status",
    HashKv(pb::HashKvRequest) = "hash-kv",
    Alarm(pb::AlarmRequest) = "alarm",
}

/// In place of the revision that the last campaign with this key was answered: a sequence does not
/// know it.
pub(crate) const AS_CAMPAIGNED: i64 = -1;

impl Operation {
    /// Whether watches must have caught up before it: how far they are decides what it does to
    /// them.
    #[must_use]
    pub fn meets_watches(&self) -> bool {
        match self {
            Self::Compact(_) => true,
            Self::Watch { request, .. } => {
                matches!(request.request_union, Some(RequestUnion::CancelRequest(_)))
                    || self.created_watch().is_some_and(|(_, id)| id != 0)
            }
            _ => false,
        }
    }

    /// The stream of a watch that is to be created, and the id that is chosen for it, or 0.
    #[must_use]
    pub fn created_watch(&self) -> Option<(usize, i64)> {
        let Self::Watch { stream, request } = self else {
            return None;
        };
        match &request.request_union {
            Some(RequestUnion::CreateRequest(create)) => Some((*stream, create.watch_id)),
            _ => None,
        }
    }

    fn parse(line: &str) -> Result<Self> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().context("a line has the name of a call")?;
        let stream = match name {
            WATCH => words.next().context("a watch has a stream")?.parse()?,
            _ => 0,
        };
        let digits = words.next().context("a call has a message")?;
        Self::decode(name, stream, &from_digits(digits)?)
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
