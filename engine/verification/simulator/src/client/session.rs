//! A client's session with the cluster: opened by a write of its own, which the history does not
//! know.

use dengine_client::policy::{Sequencer, WINDOW};
use dengine_kv as kv;
use dengine_kv::{Command, Refusal};
use dengine_types::SessionId;

use super::attempt::InFlight;
use super::{Client, Outcome, Want};
use crate::queue::SECOND;
use crate::surroundings::Surroundings;
use crate::world::Members;

impl Client {
    /// Asks for a session.
    pub(super) fn open_session(&mut self, sim: &mut Surroundings, members: &Members) {
        let ttl_ms = self.random.between(2_000, 20_000);
        sim.note(format_args!(
            "client {} opens a session for {ttl_ms} ms",
            self.id
        ));
        let want = Want::Write(Command::OpenSession { ttl_ms });
        let in_flight = InFlight::new(None, want, None, self.lane, sim.now + 5 * SECOND);
        let target = in_flight.attempts.first();
        self.in_flight = Some(in_flight);
        self.attempt(sim, members, &target);
    }

    pub(super) fn says_session_is_gone(outcome: &Outcome) -> bool {
        let Outcome::Written(Ok(written)) = outcome else {
            return false;
        };
        matches!(
            &written.outcome,
            kv::Outcome::Refused(Refusal::UnknownSession(_))
        )
    }

    pub(super) fn on_session(&mut self, sim: &mut Surroundings, session: SessionId) {
        sim.note(format_args!("client {} has session {session}", self.id));
        sim.count("sessions opened");
        self.in_flight = None;
        self.session = Some(Sequencer::new(session.0, WINDOW));
        self.rest(sim);
    }
}
