//! What clients called and what was answered: the input of every checker here.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

/// A key. Recorders turn bytes into text, so that an artefact can be read.
pub type Key = String;

/// A value. Write no value twice in one history: equal values hide which write was seen.
pub type Value = String;

/// When something happened, on the one clock that all clients of a history share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    /// Place in the order of all calls and answers. Only this is checked; equal places count as
    /// simultaneous.
    pub order: u64,
    /// For people who compare with logs: nanoseconds since the history began.
    pub nanos: u64,
}

/// One call and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// The client that called. Session reads are checked against what the same client saw before.
    pub client: u64,
    /// Which member answered, as far as that is known; 0 if not. For people only.
    #[serde(default)]
    pub member: u64,
    /// What was asked.
    pub call: Call,
    /// Before the call was sent.
    pub invoked: Moment,
    /// After the answer was there; `None` if none came.
    pub completed: Option<Moment>,
    /// What was answered.
    pub answer: Answer,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// Sets a key.
    Put {
        key: Key,
        /// Its new value.
        value: Value,
        /// Whether the pair may expire later.
        #[serde(default)]
        expires: bool,
    },
    /// Deletes a key.
    Delete { key: Key },
    /// Sets a key if it is as expected.
    CompareAndSwap {
        key: Key,
        /// What it must be.
        expected: Expected,
        /// Its new value.
        value: Value,
        /// Whether the pair may expire later.
        #[serde(default)]
        expires: bool,
    },
    /// Does several steps at one revision.
    Batch {
        /// What must hold for `then`.
        compares: Vec<(Key, Expected)>,
        /// The steps if all of that holds.
        then: Vec<BatchStep>,
        /// The steps if not.
        otherwise: Vec<BatchStep>,
    },
    /// Reads keys as of one revision.
    Read {
        keys: Vec<Key>,
        /// How fresh.
        level: Level,
    },
}

/// The state that a compare expects of its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// Last changed by this revision; 0: absent.
    ModRevision(u64),
    /// Present, with exactly this value.
    Value(Value),
}

/// One step of a batch. Later steps see what earlier ones did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStep {
    /// Sets a key.
    Put(Key, Value),
    /// Sets a key to a value that may expire later.
    PutExpiring(Key, Value),
    /// Deletes a key.
    Delete(Key),
    /// Reads a key.
    Get(Key),
}

/// How fresh a read has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Confirmed by a quorum.
    Linearizable,
    /// Covered by the leader's lease; as strong.
    Lease,
    /// Not older than `after`, nor than anything this client wrote or read at this level before.
    Session {
        /// The revision that the client sent along; 0 if none.
        after: u64,
    },
    /// Any state that once was the newest.
    Eventual,
}

impl Level {
    /// Whether such a read has its place in the one order of all writes.
    #[must_use]
    pub fn is_strong(self) -> bool {
        matches!(self, Self::Linearizable | Self::Lease)
    }
}

/// What the client learned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// Nothing: it may have happened, or may still happen.
    Unknown,
    /// An error that says that nothing happened and nothing will.
    Refused,
    Put {
        /// The revision that it took.
        revision: u64,
    },
    Delete {
        /// The revision that it took, or the current one.
        revision: u64,
        /// Whether there was something to delete.
        deleted: bool,
    },
    CompareAndSwap {
        /// The revision that it took, or the current one.
        revision: u64,
        /// Whether it took place.
        succeeded: bool,
        /// The pair as it was compared.
        previous: Option<Seen>,
    },
    Batch {
        /// The revision that it took, or the current one.
        revision: u64,
        /// Which of its two lists was done.
        succeeded: bool,
        /// One for each step.
        replies: Vec<Reply>,
    },
    Read {
        /// The revision as of which it was answered.
        revision: u64,
        /// One for each key.
        found: Vec<Option<Seen>>,
    },
}

impl Answer {
    /// The revision that it names.
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        match self {
            Self::Unknown | Self::Refused => None,
            Self::Put { revision }
            | Self::Delete { revision, .. }
            | Self::CompareAndSwap { revision, .. }
            | Self::Batch { revision, .. }
            | Self::Read { revision, .. } => Some(*revision),
        }
    }
}

/// The answer to one step of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Put,
    /// To a delete: whether there was something to delete.
    Delete(bool),
    Get(Option<Seen>),
}

/// A pair as a client saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    pub value: Value,
    /// The revision that created the key.
    pub create_revision: u64,
    /// The revision that last changed it.
    pub mod_revision: u64,
    /// How often it was changed since it was created, that included.
    pub version: u64,
}

/// All operations of a run, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// What was asked and answered.
    pub operations: Vec<Operation>,
    /// The store's revision before all of them, if nobody else wrote: every revision above it must
    /// then be accounted for, which finds whatever was applied twice. No answer may name one below.
    pub alone_since: Option<u64>,
}

/// The first line of a recorded history.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    alone_since: Option<u64>,
}

impl History {
    /// Writes one JSON object a line: a head, then the operations.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json_lines(&self, mut out: impl Write) -> io::Result<()> {
        let head = Head {
            alone_since: self.alone_since,
        };
        writeln!(out, "{}", serde_json::to_string(&head)?)?;
        for operation in &self.operations {
            writeln!(out, "{}", serde_json::to_string(operation)?)?;
        }
        Ok(())
    }

    /// Reads what [`write_json_lines`](Self::write_json_lines) wrote.
    ///
    /// # Errors
    /// Those of `input`, and `InvalidData` for anything else.
    pub fn read_json_lines(input: impl BufRead) -> io::Result<Self> {
        let mut lines = input.lines();
        let head = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        let head: Head = serde_json::from_str(&head)?;
        let operations = lines
            .map(|line| Ok(serde_json::from_str(&line?)?))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            operations,
            alone_since: head.alone_since,
        })
    }
}
