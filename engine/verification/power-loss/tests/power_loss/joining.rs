//! A member that joins by a snapshot, while it or the one that sends loses power.

use std::path::Path;

use dengine_client::AdminClient;
use dengine_client::proto::{AddLearnerRequest, JoinRequest, StatusResponse};
use dengine_power_loss::{Counts, Cut, Disk};
use dengine_testkit::Listen;

use crate::life::{End, Life, eventually};
use crate::past::{Past, broken};
use crate::trial::{KEPT_PERCENT, Replay, Trial, log_file, relapse};

/// Whose power is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

/// A cluster of one with so much history that a new member needs a snapshot. It is made once, for
/// many trials.
pub(crate) struct Cluster {
    seed: u64,
    sender: Listen,
    receiver: Listen,
    disk: Disk,
    past: Past,
}

impl Cluster {
    pub(crate) async fn make(seed: u64) -> Self {
        let sender = Listen::free();
        let (disk, past) = Trial::new(seed, None, sender).run().await.unwrap();
        Self {
            seed,
            sender,
            receiver: Listen::free(),
            // Everything is on it, and nothing is counted yet.
            disk: disk.power_loss(100, seed),
            past,
        }
    }

    /// Lets a new member join, on this disk, until one side loses power; then again on each of the
    /// disks that may survive. Returns what that side's disk was asked to change, or what was
    /// broken.
    ///
    /// # Panics
    /// Something was broken while there was power.
    pub(crate) async fn join(
        &mut self,
        side: Side,
        cut: Option<Cut>,
        newcomer: Disk,
    ) -> Result<Counts, String> {
        let replay = Replay {
            seed: self.seed,
            cut,
        };
        let log = log_file();
        let told = |when: &str, what: &str| format!("{side:?}: {}", replay.named(when, what, &log));
        let mut disks = Disks {
            sender: self.disk.clone(),
            receiver: newcomer,
        };
        disks.of(side).set_cut(cut);
        let mut promises = Promises::default();
        let mut pair = Pair::begin(disks, self, &log);
        match pair.make_voters(&mut promises).await {
            Ok(()) | Err(End::PowerLost) => {}
            Err(End::Broken(what)) => panic!("{}", told("before the power went", &what)),
        }
        let mut left = pair.end();
        for percent in KEPT_PERCENT {
            let mut survivors = left.killed();
            *survivors.of(side) = left.of(side).power_loss(percent, replay.salt());
            if percent == 50 {
                survivors.of(side).set_cut(Some(relapse(replay.salt())));
            }
            let gone_on = self.go_on(survivors, side, &promises, &log).await;
            gone_on.map_err(|what| told(&format!("{percent} % kept"), &what))?;
        }
        fs_err::remove_file(&log).unwrap();
        Ok(left.of(side).counts())
    }

    /// Both start on what they have; the new member must become a voter, and both must hold what
    /// was acknowledged.
    async fn go_on(
        &mut self,
        mut disks: Disks,
        side: Side,
        promises: &Promises,
        log: &Path,
    ) -> Result<(), String> {
        let mut promises = promises.clone();
        loop {
            let mut pair = Pair::begin(disks, self, log);
            match pair.check(&mut promises, &mut self.past).await {
                Ok(()) => return Ok(()),
                Err(End::Broken(what)) => return Err(what),
                Err(End::PowerLost) => {
                    let mut left = pair.end();
                    disks = left.killed();
                    *disks.of(side) = left.of(side).power_loss(50, self.seed);
                }
            }
        }
    }
}

/// What the new member has answered, and must not take back.
#[derive(Clone, Debug, Default)]
struct Promises {
    /// The id of its data directory.
    folder_id: Option<String>,
    /// It knows its cluster.
    is_member: bool,
}

struct Disks {
    sender: Disk,
    receiver: Disk,
}

impl Disks {
    fn of(&mut self, side: Side) -> &mut Disk {
        match side {
            Side::Sender => &mut self.sender,
            Side::Receiver => &mut self.receiver,
        }
    }

    /// As they are if only the processes end: the kernel writes everything.
    fn killed(&self) -> Self {
        Self {
            sender: self.sender.power_loss(100, 0),
            receiver: self.receiver.power_loss(100, 0),
        }
    }
}

/// Both members, from a start to an end.
struct Pair {
    sender: Life,
    receiver: Life,
}

impl Pair {
    fn begin(disks: Disks, cluster: &Cluster, log: &Path) -> Self {
        Self {
            sender: Life::begin("member", disks.sender, cluster.sender, log),
            receiver: Life::begin("newcomer", disks.receiver, cluster.receiver, log),
        }
    }

    fn end(self) -> Disks {
        Disks {
            sender: self.sender.end(),
            receiver: self.receiver.end(),
        }
    }

    /// From nothing, or from where they were interrupted, to two voters with the same state.
    async fn make_voters(&mut self, promises: &mut Promises) -> Result<(), End> {
        let leader = self.sender.admin().await?;
        let newcomer = self.receiver.admin().await?;
        let status = newcomer.status().await;
        let status = status.map_err(|error| self.over().unwrap_or(broken(error.to_string())))?;
        promises.hold(&status)?;
        let joining = async || add(&leader, &status).await;
        let join = self.eventually("it is added", joining).await?;
        let joined = async || newcomer.join(join.clone()).await.ok();
        self.eventually("it joins", joined).await?;
        promises.is_member = true;
        self.become_equal(&leader, &newcomer).await?;
        let promoted = async || leader.promote(join.member_id).await.ok();
        self.eventually("it is promoted", promoted).await?;
        Ok(())
    }

    /// After a power loss: both go on, with all that was acknowledged.
    async fn check(&mut self, promises: &mut Promises, past: &mut Past) -> Result<(), End> {
        self.make_voters(promises).await?;
        self.receiver.never_cut()?;
        past.check(&mut self.sender).await?;
        let (leader, newcomer) = (self.sender.admin().await?, self.receiver.admin().await?);
        self.become_equal(&leader, &newcomer).await?;
        match newcomer.status().await {
            Ok(status) if status.first_index > 1 => Ok(()),
            other => Err(broken(format!("it got the whole log: {other:?}"))),
        }
    }

    async fn become_equal(&mut self, one: &AdminClient, other: &AdminClient) -> Result<(), End> {
        let equal = async || {
            let (one, other) = (one.hash().await.ok()?, other.hash().await.ok()?);
            let same = one.applied_index == other.applied_index && one.hash == other.hash;
            same.then_some(())
        };
        self.eventually("both hold the same", equal).await
    }

    async fn eventually<T>(
        &mut self,
        what: &str,
        look: impl AsyncFnMut() -> Option<T>,
    ) -> Result<T, End> {
        eventually(what, look, || self.over()).await
    }

    /// Why nothing more is to be expected of one of them.
    fn over(&mut self) -> Option<End> {
        self.sender.over().or_else(|| self.receiver.over())
    }
}

impl Promises {
    /// What it answers now must be what it has answered before.
    fn hold(&mut self, now: &StatusResponse) -> Result<(), End> {
        let before = self.folder_id.get_or_insert_with(|| now.folder_id.clone());
        if *before != now.folder_id {
            return Err(broken("it forgot whose folder it has"));
        }
        if self.is_member && now.cluster_id == 0 {
            return Err(broken("it forgot its cluster"));
        }
        Ok(())
    }
}

/// Makes the newcomer a learner, or finds that it is a member.
async fn add(leader: &AdminClient, newcomer: &StatusResponse) -> Option<JoinRequest> {
    let addition = AddLearnerRequest {
        name: newcomer.name.clone(),
        peer_address: newcomer.peer_address.clone(),
        client_address: newcomer.client_address.clone(),
        folder_id: newcomer.folder_id.clone(),
    };
    let added = leader.add_learner(addition).await.ok()?;
    Some(JoinRequest {
        cluster_id: added.cluster_id,
        member_id: added.member?.id,
        folder_id: newcomer.folder_id.clone(),
    })
}
