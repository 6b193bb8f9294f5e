//! What members say to each other: who speaks, judged by what this member knows, and then messages.

use bytes::Bytes;
use dengine_kv::membership::TEXT_BYTES_MAX;
use dengine_kv::{CommandVersion, Membership};
use dengine_raft::peer_frames::{self, FrameError, Kind, PeerFrame};
use dengine_types::{ClusterId, MemberId};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::peer::{Ack, Batch, Frame, Hello, Refusal as PeerRefusal, frame};
use crate::{PEER_FRAME_MESSAGES_MAX, REMOVED_METADATA};

/// Version of the peer protocol that this program speaks.
pub const PROTOCOL: u32 = 1;

/// Of why a peer refuses, so much is heard.
const REFUSAL_CHARS_MAX: usize = 512;

/// A peer that may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Who it is.
    pub member: MemberId,
    /// Whether the log has not told of it yet, so that nothing but its own word says where it is.
    pub introduced: bool,
    /// Up to which version it reads commands.
    pub reads_max: CommandVersion,
}

/// Why a peer may not speak.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It speaks another protocol.
    #[error("this member speaks version {PROTOCOL} of the peer protocol, not {0}")]
    Protocol(u32),
    /// It wants another cluster.
    #[error("this member belongs to cluster {own}, not {named}")]
    Cluster {
        /// This member's.
        own: ClusterId,
        /// The peer's.
        named: ClusterId,
    },
    /// It wants another member.
    #[error("this is member {own}, not {named}")]
    Receiver {
        /// This one.
        own: MemberId,
        /// Whom the peer wants.
        named: MemberId,
    },
    /// Nobody has this id, or this member itself does.
    #[error("member {0} is not a peer of this one")]
    NoPeer(MemberId),
    /// No member's address or folder id is this long.
    #[error("an address or a folder id has more than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// Its data directory was replaced, so its votes are lost.
    #[error(
        "member {member} has folder id {known}, not {named}: its data directory was wiped or \
         replaced"
    )]
    FolderId {
        /// Who.
        member: MemberId,
        /// What it was added with.
        known: String,
        /// What it has now.
        named: String,
    },
    /// It is no member any more.
    #[error(
        "member {0} was removed from the cluster; stop it. To join again as a new member, start \
         it with an empty --data-dir"
    )]
    Removed(MemberId),
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut status = Self::failed_precondition(refusal.to_string());
        if matches!(refusal, Refusal::Removed(_)) {
            mark_removed(&mut status);
        }
        status
    }
}

fn mark_removed(status: &mut Status) {
    let removed = MetadataValue::from_static("1");
    status.metadata_mut().insert(REMOVED_METADATA, removed);
}

/// Whether a peer refused with this status because whoever spoke to it is no member any more.
#[must_use]
pub fn says_removed(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.metadata().contains_key(REMOVED_METADATA)
}

/// Judges what a peer says to the member `me` of `cluster`, whose log has told of `members`.
///
/// # Errors
/// The peer is not one of this member's, or wants to speak to somebody else.
pub fn admit(
    cluster: ClusterId,
    me: MemberId,
    members: &Membership,
    hello: &Hello,
) -> Result<Admitted, Refusal> {
    let (from, to) = (MemberId(hello.from), MemberId(hello.to));
    if hello.protocol != PROTOCOL {
        return Err(Refusal::Protocol(hello.protocol));
    }
    if hello.cluster_id != cluster.0 {
        return Err(Refusal::Cluster {
            own: cluster,
            named: ClusterId(hello.cluster_id),
        });
    }
    if to != me {
        return Err(Refusal::Receiver { own: me, named: to });
    }
    if from.0 == 0 || from == me {
        return Err(Refusal::NoPeer(from));
    }
    if hello.peer_address.len().max(hello.folder_id.len()) > TEXT_BYTES_MAX {
        return Err(Refusal::TooLong);
    }
    match members.members.get(&from) {
        Some(member) if member.folder_id != hello.folder_id => Err(Refusal::FolderId {
            member: from,
            known: member.folder_id.clone(),
            named: hello.folder_id.clone(),
        }),
        None if members.has_removed(from) => Err(Refusal::Removed(from)),
        known => Ok(Admitted {
            member: from,
            introduced: known.is_none(),
            reads_max: CommandVersion::announced(hello.commands_read_max),
        }),
    }
}

/// What this member announces in its Hello and its Ack: up to which version it reads commands.
#[must_use]
pub fn commands_read_max() -> u32 {
    CommandVersion::CURRENT.number().into()
}

/// The answer to a Hello that was accepted.
#[must_use]
pub fn ack() -> Ack {
    Ack {
        commands_read_max: commands_read_max(),
        takes_passed_on: true,
    }
}

/// Up to which version a member reads commands that answers so.
#[must_use]
pub fn acknowledged(ack: &Ack) -> CommandVersion {
    CommandVersion::announced(ack.commands_read_max)
}

/// The Hello with which a stream of messages begins.
///
/// # Errors
/// It begins with something else.
pub fn hello(first: Option<Frame>) -> Result<Hello, Status> {
    match first.and_then(|frame| frame.kind) {
        Some(frame::Kind::Hello(hello)) => Ok(hello),
        Some(frame::Kind::Batch(_)) | None => Err(no_hello()),
    }
}

/// What is said to whoever began a stream with something else.
#[must_use]
pub fn no_hello() -> Status {
    Status::invalid_argument("the first frame must be a Hello")
}

/// The messages in any later frame.
///
/// # Errors
/// There are none.
#[inline]
pub fn batch(frame: Frame) -> Result<Batch, Status> {
    match frame.kind {
        Some(frame::Kind::Batch(batch)) => Ok(batch),
        Some(frame::Kind::Hello(_)) | None => {
            Err(Status::invalid_argument("only batches follow the Hello"))
        }
    }
}

/// The messages in a frame that follows the Hello on a stream of frames.
///
/// # Errors
/// There are none.
pub fn messages(frame: PeerFrame) -> Result<Vec<Bytes>, Status> {
    let wrong = |error: FrameError| Status::invalid_argument(error.to_string());
    match frame.kind {
        Kind::Batch => peer_frames::messages(frame.body, PEER_FRAME_MESSAGES_MAX).map_err(wrong),
        Kind::Hello | Kind::Ack | Kind::Refusal => {
            Err(Status::invalid_argument("only batches follow the Hello"))
        }
    }
}

/// A status as it is told on a stream of frames.
#[must_use]
pub fn refusal(status: &Status) -> PeerRefusal {
    PeerRefusal {
        code: status.code() as u32,
        message: status.message().to_owned(),
        removed: says_removed(status),
    }
}

/// The status that a refusal tells.
#[must_use]
pub fn refused(refusal: &PeerRefusal) -> Status {
    let code = match i32::try_from(refusal.code).map_or(Code::Unknown, Code::from_i32) {
        Code::Ok => Code::Unknown,
        code => code,
    };
    // It is logged; whoever listens at a peer's address may say anything.
    let message = refusal
        .message
        .chars()
        .take(REFUSAL_CHARS_MAX)
        .collect::<String>();
    let mut status = Status::new(code, message);
    if refusal.removed {
        mark_removed(&mut status);
    }
    status
}

/// How many permits, each for `permit_bytes` bytes, a message takes while it waits. One that is
/// larger than all that there are takes all, and so waits alone; it must not wait for more.
#[must_use]
#[inline]
pub fn permits(message_bytes: usize, permit_bytes: usize, all: u32) -> u32 {
    let wanted = u32::try_from((message_bytes / permit_bytes).saturating_add(1));
    wanted.map_or(all, |wanted| wanted.min(all))
}

#[cfg(test)]
mod tests {
    use dengine_kv::Member;

    use super::*;

    const CLUSTER: ClusterId = ClusterId(7);
    const ME: MemberId = MemberId(1);

    /// Members 1 and 3; 2 and 4 were removed.
    fn members() -> Membership {
        let member = |id: u64| Member {
            id: MemberId(id),
            name: format!("m{id}"),
            peer_address: format!("m{id}:1"),
            client_address: format!("m{id}:2"),
            folder_id: format!("f{id}"),
            voter: true,
        };
        Membership {
            cluster_id: CLUSTER,
            members: [1, 3].map(|id| (MemberId(id), member(id))).into(),
            last_member_id: MemberId(4),
        }
    }

    fn hello_of(from: u64) -> Hello {
        Hello {
            protocol: PROTOCOL,
            cluster_id: CLUSTER.0,
            from,
            to: ME.0,
            peer_address: "somewhere:1".to_owned(),
            folder_id: format!("f{from}"),
            commands_read_max: 3,
        }
    }

    fn check(hello: &Hello, expect: Result<bool, Refusal>) {
        let found = admit(CLUSTER, ME, &members(), hello);
        let member = MemberId(hello.from);
        assert_eq!(
            found,
            expect.map(|introduced| Admitted {
                member,
                introduced,
                reads_max: CommandVersion::V3,
            })
        );
    }

    #[test]
    fn members_may_speak_and_so_may_those_that_the_log_has_yet_to_tell_of() {
        check(&hello_of(3), Ok(false));
        check(&hello_of(5), Ok(true));
        check(&hello_of(u64::MAX), Ok(true));
    }

    /// A member of the first release says nothing of it.
    #[test]
    fn members_say_which_commands_they_read() {
        for (said, expect) in [(0, 2), (2, 2), (3, 3), (4, 4), (u32::MAX, 4)] {
            let hello = Hello {
                commands_read_max: said,
                ..hello_of(3)
            };
            let admitted = admit(CLUSTER, ME, &members(), &hello).expect("a member");
            assert_eq!(admitted.reads_max.number(), expect);
            let ack = Ack {
                commands_read_max: said,
                takes_passed_on: false,
            };
            assert_eq!(acknowledged(&ack).number(), expect);
        }
        assert_eq!(acknowledged(&ack()), CommandVersion::CURRENT);
    }

    #[test]
    fn who_means_somebody_else_is_refused() {
        let hello = Hello {
            protocol: 2,
            ..hello_of(3)
        };
        check(&hello, Err(Refusal::Protocol(2)));
        let hello = Hello {
            cluster_id: 8,
            ..hello_of(3)
        };
        let (own, named) = (CLUSTER, ClusterId(8));
        check(&hello, Err(Refusal::Cluster { own, named }));
        let hello = Hello {
            to: 3,
            ..hello_of(3)
        };
        let (own, named) = (ME, MemberId(3));
        check(&hello, Err(Refusal::Receiver { own, named }));
    }

    #[test]
    fn nobody_and_this_member_itself_are_no_peers() {
        check(&hello_of(0), Err(Refusal::NoPeer(MemberId(0))));
        check(&hello_of(1), Err(Refusal::NoPeer(ME)));
    }

    #[test]
    fn who_was_removed_or_lost_its_folder_is_refused() {
        check(&hello_of(2), Err(Refusal::Removed(MemberId(2))));
        check(&hello_of(4), Err(Refusal::Removed(MemberId(4))));
        assert!(says_removed(&Refusal::Removed(MemberId(2)).into()));
        assert!(!says_removed(&Refusal::NoPeer(ME).into()));
        let wiped = Hello {
            folder_id: "other".to_owned(),
            ..hello_of(3)
        };
        let refusal = Refusal::FolderId {
            member: MemberId(3),
            known: "f3".to_owned(),
            named: "other".to_owned(),
        };
        check(&wiped, Err(refusal));
    }

    /// What a stranger says is kept, and told back, so it must not be long.
    #[test]
    fn no_member_has_an_endless_address_or_folder_id() {
        let text = |bytes| "x".repeat(bytes);
        for (bytes, expect) in [
            (TEXT_BYTES_MAX, Ok(true)),
            (TEXT_BYTES_MAX + 1, Err(Refusal::TooLong)),
        ] {
            let address = Hello {
                peer_address: text(bytes),
                ..hello_of(5)
            };
            check(&address, expect.clone());
            let folder = Hello {
                folder_id: text(bytes),
                ..hello_of(5)
            };
            check(&folder, expect);
        }
    }

    /// A leader sends messages of up to `max_batch_bytes`, which may be set above what a queue
    /// holds.
    #[test]
    fn no_message_waits_for_more_permits_than_there_are() {
        for (bytes, expect) in [(0, 1), (1023, 1), (1024, 2), (7 << 10, 8), (9 << 10, 8)] {
            assert_eq!(permits(bytes, 1024, 8), expect, "{bytes}");
        }
        assert_eq!(permits(usize::MAX, 1, 8), 8);
    }

    #[test]
    fn a_stream_is_a_hello_and_then_batches() {
        let said = |kind| Frame { kind: Some(kind) };
        let greeting = || said(frame::Kind::Hello(hello_of(3)));
        let messages = || said(frame::Kind::Batch(Batch::default()));
        assert!(hello(Some(greeting())).is_ok());
        assert!(batch(messages()).is_ok());
        for wrong in [Some(messages()), Some(Frame::default()), None] {
            assert!(hello(wrong).is_err());
        }
        for wrong in [greeting(), Frame::default()] {
            assert!(batch(wrong).is_err());
        }
    }
}
