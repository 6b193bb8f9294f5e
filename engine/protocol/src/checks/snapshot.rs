//! What a member sends of a snapshot: a Hello, an offer, chunks and an end.

use dengine_snapshot::{Chunk, Place, SnapshotError};
use tonic::Status;

use crate::checks::peer::no_hello;
use crate::peer::snapshot_frame::Kind;
use crate::peer::{Hello, SnapshotFrame, SnapshotOffer};

/// What follows the offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A part of a file.
    Chunk(Chunk),
    /// That was all.
    End,
}

/// The Hello with which a stream begins.
///
/// # Errors
/// It begins with something else.
pub fn hello(first: Option<SnapshotFrame>) -> Result<Hello, Status> {
    match first.and_then(|frame| frame.kind) {
        Some(Kind::Hello(hello)) => Ok(hello),
        Some(Kind::Offer(_) | Kind::Chunk(_) | Kind::End(_)) | None => Err(no_hello()),
    }
}

/// What is offered in the second frame.
///
/// # Errors
/// Nothing is.
pub fn offer(second: SnapshotFrame) -> Result<SnapshotOffer, Status> {
    match kind(second)? {
        Kind::Offer(offer) => Ok(offer),
        Kind::Hello(_) | Kind::Chunk(_) | Kind::End(_) => {
            Err(Status::invalid_argument("an offer must follow the Hello"))
        }
    }
}

/// The piece in any later frame.
///
/// # Errors
/// There is none.
pub fn piece(frame: SnapshotFrame) -> Result<Piece, Status> {
    match kind(frame)? {
        Kind::Chunk(chunk) => Ok(Piece::Chunk(Chunk {
            place: Place {
                file: chunk.file,
                offset: chunk.offset,
            },
            bytes: chunk.content,
            crc: chunk.crc,
        })),
        Kind::End(_) => Ok(Piece::End),
        Kind::Hello(_) | Kind::Offer(_) => {
            Err(Status::invalid_argument("only chunks follow the offer"))
        }
    }
}

fn kind(frame: SnapshotFrame) -> Result<Kind, Status> {
    frame
        .kind
        .ok_or_else(|| Status::invalid_argument("an empty frame"))
}

/// The status that tells the sender why its snapshot is not taken.
#[must_use]
pub fn status(error: &SnapshotError) -> Status {
    let reason = error.to_string();
    match error {
        SnapshotError::Malformed(_) | SnapshotError::Chunk(_) => Status::invalid_argument(reason),
        SnapshotError::NewerFormat { .. } | SnapshotError::WrongCluster { .. } => {
            Status::failed_precondition(reason)
        }
        SnapshotError::TooLarge { .. } => Status::resource_exhausted(reason),
        SnapshotError::Damaged { .. } | SnapshotError::WrongState(_) => Status::data_loss(reason),
        SnapshotError::Disk(_) | SnapshotError::Missing { .. } | SnapshotError::Incomplete => {
            Status::unavailable(reason)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{SnapshotChunk, SnapshotEnd};

    fn said(kind: Kind) -> SnapshotFrame {
        SnapshotFrame { kind: Some(kind) }
    }

    /// Whether each of the three places of a stream takes the frame.
    fn check(frame: SnapshotFrame, expect: [bool; 3]) {
        let taken = [
            hello(Some(frame.clone())).is_ok(),
            offer(frame.clone()).is_ok(),
            piece(frame).is_ok(),
        ];
        assert_eq!(taken, expect);
    }

    #[test]
    fn every_frame_has_its_place() {
        check(said(Kind::Hello(Hello::default())), [true, false, false]);
        check(
            said(Kind::Offer(SnapshotOffer::default())),
            [false, true, false],
        );
        check(
            said(Kind::Chunk(SnapshotChunk::default())),
            [false, false, true],
        );
        check(said(Kind::End(SnapshotEnd {})), [false, false, true]);
        check(SnapshotFrame::default(), [false; 3]);
    }
}
