//! What goes wrong. Each fault begins, lasts for a while and is healed; two may last at the same time.

use std::time::Instant;

use crate::cluster::Cluster;
use crate::dice::Dice;

/// Something that goes wrong with members, given by their places.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
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
    /// The lead is handed over.
    Transfer(usize),
    /// A member is removed, wiped, and joins as a new one.
    Replace(usize),
}

impl Fault {
    /// Draws one; every other time it meets whoever leads.
    async fn draw(cluster: &Cluster, dice: &mut Dice) -> Self {
        let members = cluster.members.len();
        let mut place = dice.below(members);
        if dice.below(2) == 0 {
            place = cluster.leader().await.unwrap_or(place);
        }
        let other = (place + 1 + dice.below(members - 1)) % members;
        match dice.below(11) {
            0 | 1 => Self::Kill(place),
            2 => Self::KillAll,
            3 | 4 => Self::Pause(place),
            5 => Self::Isolate(place),
            6 => Self::OneWay(place, other),
            7 => Self::Deaf(place),
            8 => Self::FullDisk(place),
            9 => Self::Transfer(other),
            _ => Self::Replace(place),
        }
    }

    /// Lets faults happen until `end`; returns how many.
    pub(crate) async fn rage(cluster: &mut Cluster, dice: &mut Dice, end: Instant) -> usize {
        let mut faults = 0;
        while Instant::now() < end {
            for _ in 0..=dice.below(2) {
                let fault = Self::draw(cluster, dice).await;
                eprintln!("torture: {fault:?}");
                fault.begin(cluster).await;
                faults += 1;
            }
            tokio::time::sleep(dice.millis(500, 5_000)).await;
            cluster.heal();
            tokio::time::sleep(dice.millis(200, 3_000)).await;
        }
        faults
    }

    async fn begin(self, cluster: &mut Cluster) {
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
            Self::Transfer(place) => transfer(cluster, place).await,
            Self::Replace(place) => replace(cluster, place).await,
        }
    }
}

/// Asks for the lead to be handed over; under other faults that may fail.
async fn transfer(cluster: &Cluster, place: usize) {
    let asked = crate::cluster::soon(async {
        let id = cluster.members[place].status().await?.member_id;
        cluster.leader_admin().await?.transfer_leader(id).await.ok()
    });
    let _ = asked.await;
}

/// Removes a member while everything else is well, and lets its wiped place join as a new one.
async fn replace(cluster: &mut Cluster, place: usize) {
    cluster.heal();
    let id = crate::cluster::eventually("the member to remove answers", || async {
        Some(cluster.members[place].status().await?.member_id)
    })
    .await;
    crate::cluster::eventually("a member is removed", || async {
        let admin = cluster.leader_admin().await?;
        // Whoever leads has to hand over first.
        if cluster.leader().await == Some(place) {
            let other = (place + 1) % cluster.members.len();
            let other = cluster.members[other].status().await?.member_id;
            admin.transfer_leader(other).await.ok()?;
        }
        cluster.leader_admin().await?.remove(id).await.ok()
    })
    .await;
    cluster.members[place].wipe();
    cluster.members[place].start();
    cluster.join(place).await;
}
