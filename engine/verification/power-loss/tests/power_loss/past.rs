//! What the member was asked and acknowledged, and whether it kept that.
//!
//! This is compared with a model here ([`State`]), not recorded for `dengine-checker`: that would
//! not compare creation and version of pairs at old revisions for a key that a call of unknown
//! outcome touched, and here there is such a call after almost every cut.

use dengine_client::{Client, Error, KeyRange, RangeQuery};
use tokio::task::JoinHandle;

use crate::life::{End, Life};
use crate::script::{self, Step};
use crate::state::{State, Write};

/// Reported if an acknowledged write is gone, or one is there that was never asked for.
pub(crate) const NOT_AS_PROMISED: &str = "the state is not what was acknowledged";

type Answer = dengine_client::Result<Option<u64>>;

/// A step that had no answer when the power went.
enum Unanswered {
    /// It may have taken effect.
    Known(Step),
    /// Its client still tries, as part of a session: it must take effect, once.
    Trying(Step, JoinHandle<Answer>),
}

pub(crate) struct Past {
    /// It was seen to serve as a member of its cluster.
    pub(crate) is_member: bool,
    /// Once its session is open.
    pub(crate) session: Option<Client>,
    /// After each revision, as acknowledged.
    states: Vec<State>,
    /// History before this revision was given up.
    compacted: u64,
    unanswered: Option<Unanswered>,
}

pub(crate) fn broken(what: impl Into<String>) -> End {
    End::Broken(what.into())
}

impl Past {
    pub(crate) fn new() -> Self {
        Self {
            is_member: false,
            session: None,
            states: vec![State::new()],
            compacted: 0,
            unanswered: None,
        }
    }

    /// The last state that was acknowledged.
    pub(crate) fn now(&self) -> &State {
        self.states.last().expect("there is always one")
    }

    /// Records the answer to a step.
    pub(crate) fn answered(&mut self, step: Step, answer: Answer, is_cut: bool) -> Result<(), End> {
        match answer {
            Ok(revision) => self.acknowledged(&step, revision),
            Err(error) if !is_cut => Err(broken(format!("{step:?}: {error}"))),
            Err(error) => {
                // A retryable error says that nothing changed.
                if !error.retryable() {
                    self.unanswered = Some(Unanswered::Known(step));
                }
                Err(End::PowerLost)
            }
        }
    }

    /// Records that a step has no answer yet; if it is of a session, its client goes on trying.
    pub(crate) fn unanswered(&mut self, step: Step, asked: JoinHandle<Answer>, of_session: bool) {
        self.unanswered = Some(match step {
            Step::Write(_) | Step::Compact(_) if of_session => Unanswered::Trying(step, asked),
            _ => {
                asked.abort();
                Unanswered::Known(step)
            }
        });
    }

    fn acknowledged(&mut self, step: &Step, revision: Option<u64>) -> Result<(), End> {
        match step {
            Step::Flush => {}
            Step::Compact(revision) => self.compacted = *revision,
            Step::Write(write) => {
                let next = self.now().after(write);
                if revision != Some(next.revision) {
                    let told = format!(
                        "{write:?} took revision {revision:?}, not {}",
                        next.revision
                    );
                    return Err(broken(told));
                }
                if next.revision > self.now().revision {
                    self.states.push(next);
                }
            }
        }
        Ok(())
    }

    /// What may be found: the step without an answer took effect, or it did not.
    fn may_be(&self) -> Vec<State> {
        let now = self.now().clone();
        match &self.unanswered {
            Some(Unanswered::Known(Step::Write(write))) => vec![now.after(write), now],
            _ => vec![now],
        }
    }

    /// Old revisions can be read from here on, whether or not the step without an answer took
    /// effect.
    fn history_begins(&self) -> u64 {
        match &self.unanswered {
            Some(Unanswered::Known(Step::Compact(revision))) => self.compacted.max(*revision),
            _ => self.compacted,
        }
    }

    /// A member that lost power must serve what it acknowledged and nothing else, and go on.
    pub(crate) async fn check(&mut self, life: &mut Life) -> Result<(), End> {
        let admin = life.admin().await?;
        let status = life.ask(admin.status()).await?;
        if self.is_member && status.cluster_id == 0 {
            return Err(broken("it forgot its cluster"));
        }
        life.bootstrap(&admin).await?;
        life.never_cut()?;
        let client = life.client().await?;
        let may_be = match self.settle(life).await? {
            Some(Step::Write(write)) => vec![self.now().after(&write)],
            _ => self.may_be(),
        };
        let found = read(life, &client, 0).await?;
        if !may_be.contains(&found) {
            let told = may_be.iter().map(|state| state.difference(&found));
            let told = told.collect::<Vec<_>>().join("; or ");
            return Err(broken(format!("{NOT_AS_PROMISED}: {told}")));
        }
        self.check_history(life, &client).await?;
        self.go_on(life, &client, &found).await
    }

    /// A client that still tries gets its answer now, and its step has taken effect then. On the
    /// disks that are checked after this one it may have or not.
    async fn settle(&mut self, life: &mut Life) -> Result<Option<Step>, End> {
        match self.unanswered.take() {
            Some(Unanswered::Trying(step, asked)) => {
                let answer = life.answer(asked).await;
                let answer = answer.ok_or_else(|| broken("a write of a session has no answer"))?;
                let answer = answer.expect("a client does not panic");
                answer.map_err(|error| broken(format!("{step:?}, sent again: {error}")))?;
                self.unanswered = Some(Unanswered::Known(step.clone()));
                Ok(Some(step))
            }
            known => {
                self.unanswered = known;
                Ok(None)
            }
        }
    }

    /// Every state that was acknowledged can still be read, unless its history was given up.
    async fn check_history(&self, life: &mut Life, client: &Client) -> Result<(), End> {
        let begins = self.history_begins();
        for state in self.states.iter().filter(|state| state.revision >= begins) {
            let found = read(life, client, state.revision).await?;
            if found != *state {
                return Err(broken(format!("in the past: {}", state.difference(&found))));
            }
        }
        if self.compacted > 1 {
            let gone = RangeQuery::new(KeyRange::all()).revision(self.compacted - 1);
            match client.range(gone).await {
                Err(Error::RevisionUnavailable { .. }) => {}
                other => return Err(broken(format!("compacted history is back: {other:?}"))),
            }
        }
        Ok(())
    }

    /// The next write succeeds; if there is a session, as part of it.
    async fn go_on(&self, life: &mut Life, client: &Client, found: &State) -> Result<(), End> {
        let client = self.session.as_ref().unwrap_or(client);
        let write = Write::Put("after".into(), "the power loss".into());
        let step = Step::Write(write.clone());
        let admin = life.admin().await?;
        let revision = life
            .ask(script::perform(client.clone(), admin, step))
            .await?;
        let expected = found.after(&write);
        let found = read(life, client, 0).await?;
        if revision != Some(expected.revision) || found != expected {
            return Err(broken(format!(
                "the next write: {}",
                expected.difference(&found)
            )));
        }
        Ok(())
    }
}

/// All pairs as they were after a revision; 0 is the newest.
async fn read(life: &mut Life, client: &Client, revision: u64) -> Result<State, End> {
    let query = RangeQuery::new(KeyRange::all()).revision(revision);
    let read = life.ask(client.range(query)).await?;
    let revision = match revision {
        0 => read.header.revision,
        past => past,
    };
    Ok(State::read(revision, read.kvs))
}
