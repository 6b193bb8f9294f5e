//! What a run is told by its environment; see `make hostile`.

use std::time::Duration;

use dengine_testkit::settings;

use crate::TOGETHER;
use crate::attackers::{self, Attacker};

const ATTACK_MIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Of each attack.
    pub(crate) attack: Duration,
    /// Of the honest load without it, before it.
    pub(crate) before: Duration,
    /// Of the cluster.
    pub(crate) members: usize,
    /// Only attacks with this in their name.
    pub(crate) only: Option<String>,
}

impl Settings {
    pub(crate) fn read() -> Self {
        let attack = settings::duration("DENGINE_HOSTILE_DURATION");
        let attack = attack.unwrap_or(Duration::from_secs(30));
        assert!(
            attack >= ATTACK_MIN,
            "DURATION={attack:?}: each attack takes at least 1s"
        );
        let members =
            settings::text("DENGINE_HOSTILE_MEMBERS").map_or(1, |text| match text.as_str() {
                "1" => 1,
                "3" => 3,
                _ => panic!("MEMBERS={text}: a cluster of 1 or 3 is attacked"),
            });
        Self {
            attack,
            before: attack.min(Duration::from_secs(5)),
            members,
            only: settings::text("DENGINE_HOSTILE_ONLY"),
        }
    }

    /// The neighbour, each attacker alone, and then all of them; or those of it that are wanted.
    pub(crate) fn attacks(&self) -> Vec<(&'static str, Vec<&'static Attacker>)> {
        let all: Vec<&Attacker> = attackers::all().collect();
        let alone = [&attackers::NEIGHBOUR]
            .into_iter()
            .chain(all.iter().copied());
        let alone = alone.map(|it| (it.name, vec![it]));
        let mut attacks: Vec<_> = alone.chain([(TOGETHER, all.clone())]).collect();
        if let Some(only) = &self.only {
            attacks.retain(|(name, _)| name.contains(only.as_str()));
            let names: Vec<_> = all.iter().map(|it| it.name).collect();
            assert!(
                !attacks.is_empty(),
                "ONLY={only}: no attacker's name has that in it: {names:?}, {TOGETHER}"
            );
        }
        attacks
    }
}
