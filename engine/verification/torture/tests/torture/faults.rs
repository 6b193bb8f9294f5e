//! What goes wrong. Each fault begins, lasts for a while and is healed; two may last at the same
//! time.

use std::time::{Duration, Instant};

use dengine_testkit::Random;

use crate::cluster::{Cluster, soon};
use crate::{MEMBERS_MAX, MEMBERS_MIN};

/// Something that happens to a cluster. Members are given by their places.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Something is wrong until it is healed.
    Harm(Harm),
    /// The lead is handed over.
    Transfer(usize),
    /// A member is removed, wiped, and joins as a new one.
    Replace(usize),
    /// One more member joins.
    Grow,
    /// The member in the last place is removed for good.
    Shrink,
}

/// Something that begins in a moment and lasts until it is healed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    /// SIGKILL; started again at the end.
    Kill(usize),
    /// SIGKILL of all.
    KillAll,
    /// SIGSTOP, then SIGCONT.
    Pause(usize),
    /// Nothing passes between one and the others.
    Isolate(usize),
    /// Nothing from the first reaches the second.
    OneWay(usize, usize),
    /// The first hears nobody, but is heard.
    Deaf(usize),
    /// Its disk is full; a member that ends for it is started again.
    FullDisk(usize),
}

impl Fault {
    async fn draw(cluster: &Cluster, dice: &mut Random) -> Self {
        let members = cluster.members.len();
        match dice.below(14) {
            0..=9 => Self::Harm(Harm::draw(cluster, dice).await),
            10 => Self::Transfer(dice.below(members)),
            11 => Self::Replace(somebody(cluster, dice).await),
            _ if members == MEMBERS_MIN => Self::Grow,
            _ if members == MEMBERS_MAX => Self::Shrink,
            12 => Self::Grow,
            _ => Self::Shrink,
        }
    }

    /// Lets faults happen until `end`; returns how many.
    pub(crate) async fn rage(cluster: &mut Cluster, dice: &mut Random, end: Instant) -> usize {
        let mut faults = 0;
        while Instant::now() < end {
            for _ in 0..=dice.below(2) {
                let fault = Self::draw(cluster, dice).await;
                eprintln!("torture: {fault:?}");
                fault.begin(cluster, dice).await;
                faults += 1;
            }
            tokio::time::sleep(Duration::from_millis(dice.between(500, 5_000))).await;
            cluster.heal();
            tokio::time::sleep(Duration::from_millis(dice.between(200, 3_000))).await;
        }
        faults
    }

    async fn begin(self, cluster: &mut Cluster, dice: &mut Random) {
        match self {
            Self::Harm(harm) => harm.begin(cluster),
            Self::Transfer(place) => transfer(cluster, place).await,
            Self::Replace(place) => {
                let id = leaving(cluster, dice, place).await;
                cluster.remove(place, id).await;
                interrupt(cluster, dice).await;
                cluster.members[place].wipe();
                cluster.members[place].start();
                join(cluster, dice, place).await;
            }
            Self::Grow => {
                cluster.heal();
                let place = cluster.make_place();
                join(cluster, dice, place).await;
            }
            Self::Shrink => {
                let place = cluster.members.len() - 1;
                let id = leaving(cluster, dice, place).await;
                cluster.remove(place, id).await;
                cluster.members.pop();
            }
        }
    }
}

impl Harm {
    async fn draw(cluster: &Cluster, dice: &mut Random) -> Self {
        let members = cluster.members.len();
        let place = somebody(cluster, dice).await;
        let other = (place + 1 + dice.below(members - 1)) % members;
        match dice.below(9) {
            0 | 1 => Self::Kill(place),
            2 => Self::KillAll,
            3 | 4 => Self::Pause(place),
            5 => Self::Isolate(place),
            6 => Self::OneWay(place, other),
            7 => Self::Deaf(place),
            _ => Self::FullDisk(place),
        }
    }

    fn begin(self, cluster: &mut Cluster) {
        let others = |place| (0..cluster.members.len()).filter(move |other| *other != place);
        match self {
            Self::Kill(place) => cluster.members[place].kill(),
            Self::KillAll => cluster
                .members
                .iter_mut()
                .for_each(crate::member::Member::kill),
            Self::Pause(place) => cluster.members[place].pause(),
            Self::Isolate(place) => {
                for other in others(place) {
                    cluster.network.cut(place, other);
                    cluster.network.cut(other, place);
                }
            }
            Self::OneWay(from, to) => cluster.network.cut(from, to),
            Self::Deaf(place) => others(place).for_each(|other| cluster.network.cut(other, place)),
            Self::FullDisk(place) => cluster.members[place].fill_disk(),
        }
    }
}

/// Any member; every other time whoever leads.
async fn somebody(cluster: &Cluster, dice: &mut Random) -> usize {
    let place = dice.below(cluster.members.len());
    match dice.below(2) {
        0 => cluster.leader().await.unwrap_or(place),
        _ => place,
    }
}

/// Asks for the lead to be handed over; under other faults that may fail.
async fn transfer(cluster: &Cluster, place: usize) {
    let asked = soon(async {
        let id = cluster.members[place].status().await?.member_id;
        cluster.leader_admin().await?.transfer_leader(id).await.ok()
    });
    let _ = asked.await;
}

/// Who is about to be removed. What is wrong with the others may come after asking it, not before.
async fn leaving(cluster: &mut Cluster, dice: &mut Random, place: usize) -> u64 {
    cluster.heal();
    let id = cluster.id(place).await;
    interrupt(cluster, dice).await;
    id
}

/// Makes the stranger in a place a voter, with something going wrong between any two steps of that.
async fn join(cluster: &mut Cluster, dice: &mut Random, place: usize) {
    interrupt(cluster, dice).await;
    let learner = cluster.add(place).await;
    interrupt(cluster, dice).await;
    let id = cluster.tell(place, learner).await;
    interrupt(cluster, dice).await;
    cluster.promote(id).await;
}

/// In the middle of a change of members something else goes wrong for a moment, or nothing does.
async fn interrupt(cluster: &mut Cluster, dice: &mut Random) {
    if dice.below(2) == 0 {
        let harm = Harm::draw(cluster, dice).await;
        eprintln!("torture:   {harm:?} meanwhile");
        harm.begin(cluster);
        tokio::time::sleep(Duration::from_millis(dice.between(50, 1_500))).await;
        cluster.heal();
    }
}
