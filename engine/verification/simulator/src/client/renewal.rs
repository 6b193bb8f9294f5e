//! A client that means to keep a key alive: it puts it again when its time is all but over, and
//! then looks whether it is there. That is the moment in which an expiry may hit the wrong pair.

use dengine_checker::{Answer, Call, Level};
use dengine_kv::Command;

use super::{Want, operation};
use crate::queue::{MILLI, Nanos};
use crate::random::Random;

/// What it does next about such a key.
pub(super) enum Renewal {
    /// Puts it again, when it was put to live for so long.
    Put { key: String, ttl: Nanos },
    /// Looks at it.
    Look { key: String },
}

impl Renewal {
    /// What follows from a put that was acknowledged and has a time to live.
    pub(super) fn of(want: &Want, answer: &Answer) -> Option<Self> {
        match (want, answer) {
            (Want::Write(Command::Put(put)), Answer::Put { .. }) if put.ttl_ms > 0 => {
                Some(Self::Put {
                    key: String::from_utf8_lossy(&put.key).into_owned(),
                    ttl: put.ttl_ms * MILLI,
                })
            }
            _ => None,
        }
    }

    /// In how long: the leader looks four times a second what has expired, by its own clock.
    pub(super) fn due(&self, random: &mut Random) -> Option<Nanos> {
        match self {
            Self::Put { ttl, .. } => Some(ttl * 9 / 10 + random.below(ttl / 5 + 300 * MILLI)),
            Self::Look { .. } => None,
        }
    }

    /// The next call about the key; `next` is what follows it.
    pub(super) fn go_on(
        self,
        random: &mut Random,
        unique: String,
        next: &mut Option<Self>,
    ) -> (Call, Want) {
        match self {
            Self::Put { key, .. } => {
                *next = Some(Self::Look { key: key.clone() });
                let ttl_ms = random.below(2) * random.between(500, 3_000);
                operation::put(key, unique, ttl_ms)
            }
            Self::Look { key } => operation::read(vec![key], Level::Linearizable),
        }
    }
}
