//! What a run is told by its environment; see `make hostile`.

use std::time::Duration;

use crate::{
    TOGETHER,
    attackers::{self, Attacker},
};

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
        let attack = given("DENGINE_HOSTILE_DURATION").map_or(Duration::from_secs(30), |text| {
            duration(&text)
                .unwrap_or_else(|| panic!("DURATION={text} is no time such as 30s or 2m"))
        });
        let members = given("DENGINE_HOSTILE_MEMBERS").map_or(1, |text| match text.as_str() {
            "1" => 1,
            "3" => 3,
            _ => panic!("MEMBERS={text}: a cluster of 1 or 3 is attacked"),
        });
        Self {
            attack,
            before: attack.min(Duration::from_secs(5)),
            members,
            only: given("DENGINE_HOSTILE_ONLY"),
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

fn given(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|it| !it.is_empty())
}

/// As `90s` or `2m`.
fn duration(text: &str) -> Option<Duration> {
    let (number, seconds) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let number: u64 = number.parse().ok().filter(|it| (1..=3600).contains(it))?;
    Some(Duration::from_secs(number * seconds))
}
