//! What a system answers to one call.

use std::fmt::Debug;

use tonic::{Response, Status};

use crate::operation::shortened;
use crate::pb;

/// Characters of an answer's line that a report shows: values can be long.
const LINE_CHARS_MAX: usize = 300;

/// An answer, or the code and text of a refusal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// Of a RangeStream too: its pieces, merged.
    Range(pb::RangeResponse),
    Put(pb::PutResponse),
    Delete(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Compact(pb::CompactionResponse),
    /// What is said at once about a watch: that it began, or that it was cancelled.
    Watch(pb::WatchResponse),
    Grant(pb::LeaseGrantResponse),
    Revoke(pb::LeaseRevokeResponse),
    /// Nothing, if the stream ended without an answer.
    KeepAlive(Option<pb::LeaseKeepAliveResponse>),
    TimeToLive(pb::LeaseTimeToLiveResponse),
    Leases(pb::LeaseLeasesResponse),
    Lock(pb::LockResponse),
    Unlock(pb::UnlockResponse),
    Campaign(pb::CampaignResponse),
    Proclaim(pb::ProclaimResponse),
    /// Of who observes too.
    Leader(pb::LeaderResponse),
    Resign(pb::ResignResponse),
    Members(pb::MemberListResponse),
    Status(pb::StatusResponse),
    HashKv(pb::HashKvResponse),
    Alarm(pb::AlarmResponse),
    /// The code as its name, and the text.
    Refused(tonic::Code, String),
    /// Nothing is answered to what was asked, such as cancelling a watch that does not exist.
    Silence,
    /// An answer should have come, and did not in time.
    Missing,
    /// An answer that breaks a promise, and how. No other is like it.
    Broken(String),
}

impl From<Status> for Reply {
    fn from(status: Status) -> Self {
        Self::Refused(status.code(), status.message().to_owned())
    }
}

impl Reply {
    pub(crate) fn of<T>(answer: Result<Response<T>, Status>, as_reply: fn(T) -> Self) -> Self {
        match answer {
            Ok(response) => as_reply(response.into_inner()),
            Err(status) => status.into(),
        }
    }

    /// Whether a system may answer so at all.
    pub(crate) fn may_be(&self) -> bool {
        !matches!(self, Self::Missing | Self::Broken(_))
    }

    /// The code of a refusal, `Ok` of everything else.
    pub(crate) fn code(&self) -> tonic::Code {
        match self {
            Self::Refused(code, _) => *code,
            _ => tonic::Code::Ok,
        }
    }

    /// The revision that its head names; 0 without a head.
    pub(crate) fn revision(&self) -> i64 {
        let header = match self {
            Self::Range(response) => &response.header,
            Self::Put(response) => &response.header,
            Self::Delete(response) => &response.header,
            Self::Txn(response) => &response.header,
            Self::Compact(response) => &response.header,
            Self::Watch(response) => &response.header,
            Self::Grant(response) => &response.header,
            Self::Revoke(response) => &response.header,
            Self::Lock(response) => &response.header,
            Self::Unlock(response) => &response.header,
            Self::Campaign(response) => &response.header,
            Self::Proclaim(response) => &response.header,
            Self::Leader(response) => &response.header,
            Self::Resign(response) => &response.header,
            Self::HashKv(response) => &response.header,
            _ => &None,
        };
        header.as_ref().map_or(0, |header| header.revision)
    }
}

/// Every field on a line of its own; what is compared and what a report shows.
pub(crate) fn in_lines(what: &impl Debug) -> String {
    format!("{what:#?}")
}

/// The lines by which two answers differ, with those around them.
pub(crate) fn difference(left: &str, right: &str) -> String {
    const AROUND: usize = 4;
    const LINES_MAX: usize = 40;
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (left, right) = (lines(left), lines(right));
    let same = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
    let ends = left.iter().rev().zip(right.iter().rev());
    let shorter = left.len().min(right.len()) - same;
    let same_end = ends.take_while(|(a, b)| a == b).count().min(shorter);
    let part = |lines: &[String], sign: char| {
        let part = &lines[same..lines.len() - same_end];
        let shown = part.iter().take(LINES_MAX);
        let mut text: String = shown
            .map(|line| format!("{sign} {}\n", shortened(line, LINE_CHARS_MAX)))
            .collect();
        if part.len() > LINES_MAX {
            text += &format!("{sign} and {} lines more\n", part.len() - LINES_MAX);
        }
        text
    };
    let before = left[same.saturating_sub(AROUND)..same].iter();
    let before = before.map(|line| format!("  {}\n", shortened(line, LINE_CHARS_MAX)));
    before.collect::<String>() + &part(&left, '<') + &part(&right, '>')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_shows_what_differs_and_what_is_before_it() {
        let text = difference("a\nb\nc\nd", "a\nx\ny\nc\nd");
        assert_eq!(text, "  a\n< b\n> x\n> y\n");
        assert_eq!(difference("a\na", "a"), "  a\n< a\n");
    }
}
