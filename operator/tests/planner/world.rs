//! A model of everything the planner observes and acts on. It checks each step as it is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use dengine_operator::cluster::model::{
    Broken, Claim, Identity, Member, Membership, Observed, OldVolume, Pod, Replaced, Report,
    Wanted, quorum,
};
use dengine_operator::cluster::plan::{
    MembershipStep, ObjectStep, Record, Removal, Step, no_longer_needed, plan,
    stateful_set_replicas,
};

const CLUSTER_ID: u64 = 77;

/// One cluster in its Kubernetes.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) wanted_replicas: u32,
    pub(crate) template: u64,
    set_replicas: Option<u32>,
    pods: BTreeMap<u32, SimPod>,
    claims: BTreeMap<u32, SimClaim>,
    members: Vec<SimMember>,
    leader: Option<u64>,
    recorded: Option<(u64, Option<String>)>,
    had_members: bool,
    bootstrapped: Option<String>,
    replaced: BTreeMap<u32, Replaced>,
    kept: Vec<OldVolume>,
    /// Voters whose data was given up.
    given_up: BTreeSet<u64>,
    next: u64,
}

#[derive(Clone, Debug)]
struct SimPod {
    uid: String,
    up: bool,
    /// The server fails on every start, for a reason that is not in its data directory.
    crashing: bool,
    /// It belongs to the StatefulSet of a deleted resource.
    of_another: bool,
    template: u64,
}

#[derive(Clone, Debug)]
struct SimClaim {
    uid: String,
    folder_id: String,
    member_id: Option<u64>,
    marked_for: Option<Identity>,
    terminating: bool,
    damaged: bool,
}

#[derive(Clone, Debug)]
struct SimMember {
    id: u64,
    ordinal: u32,
    folder_id: String,
    voter: bool,
}

impl World {
    pub(crate) fn new(replicas: u32) -> Self {
        Self {
            wanted_replicas: replicas,
            template: 0,
            set_replicas: None,
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            members: Vec::new(),
            leader: None,
            recorded: None,
            had_members: false,
            bootstrapped: None,
            replaced: BTreeMap::new(),
            kept: Vec::new(),
            given_up: BTreeSet::new(),
            next: 0,
        }
    }

    /// Observes, plans and carries out one step, as a reconciliation does.
    pub(crate) fn step(&mut self, crash_before_status: bool) -> Step {
        let observed = self.observe();
        let step = plan(&observed, &self.wanted());
        let size = stateful_set_replicas(&observed, &self.wanted());
        self.check_size(size);
        self.set_replicas = Some(size);
        let had_quorum = self.has_quorum();
        let alone = self.voters().count() == 1;
        self.carry_out(&step);
        self.let_go(&no_longer_needed(&observed, &self.wanted()));
        let costs_quorum = had_quorum && !self.has_quorum();
        let restarts_the_only_one = alone
            && self.wanted_replicas == 1
            && matches!(step, Step::Object(ObjectStep::RestartPod { .. }));
        assert!(
            !costs_quorum || restarts_the_only_one,
            "{step:?} cost the quorum: {self:#?}"
        );
        if !crash_before_status && observed.membership.is_some() {
            self.had_members = true;
        }
        self.kubernetes();
        self.elect();
        step
    }

    /// The status is restored from before a replacement. Volumes that are kept are labelled.
    pub(crate) fn forget_replacements(&mut self) {
        self.replaced.clear();
    }

    /// The StatefulSet still names the cluster.
    pub(crate) fn forget_status(&mut self) {
        if self.had_members {
            self.recorded = Some((CLUSTER_ID, None));
            self.forget_replacements();
        }
    }

    pub(crate) fn plan(&self) -> Step {
        plan(&self.observe(), &self.wanted())
    }

    pub(crate) fn set_up(&mut self, pod: u32, up: bool) {
        if let Some(pod) = self.pods.get_mut(&pod) {
            pod.up = up;
            pod.crashing &= !up;
        }
        self.elect();
    }

    pub(crate) fn evict(&mut self, pod: u32) {
        self.pods.remove(&pod);
        self.elect();
    }

    pub(crate) fn wipe(&mut self, pod: u32) {
        let folder_id = self.fresh("folder");
        if let Some(claim) = self.claims.get_mut(&pod) {
            claim.folder_id = folder_id;
            claim.member_id = None;
            claim.damaged = false;
        }
        self.elect();
    }

    /// The data directory of a member is damaged: its server fails on every start. (The operator
    /// never touches a damaged directory of an unknown member: only a person knows what it holds.)
    pub(crate) fn damage(&mut self, pod: u32) {
        let claim = self.claims.get_mut(&pod);
        let members = &self.members;
        let of_a_member = |claim: &&mut SimClaim| {
            let mut folders = members.iter().map(|member| &member.folder_id);
            claim.member_id.is_some() && folders.any(|folder| *folder == claim.folder_id)
        };
        if let Some(claim) = claim.filter(of_a_member) {
            claim.damaged = true;
        }
        self.elect();
    }

    /// Something that the server needs is missing on this node: it fails on every start.
    pub(crate) fn crash(&mut self, pod: u32) {
        if let Some(pod) = self.pods.get_mut(&pod) {
            (pod.up, pod.crashing) = (false, true);
        }
        self.elect();
    }

    pub(crate) fn lose_claim(&mut self, pod: u32) {
        self.pods.remove(&pod);
        self.claims.remove(&pod);
        self.elect();
    }

    /// The claim stays while its pod exists, and the volume with it.
    pub(crate) fn delete_claim(&mut self, pod: u32) {
        if let Some(claim) = self.claims.get_mut(&pod) {
            claim.terminating = true;
        }
        self.kubernetes();
        self.elect();
    }

    /// The resource and its claims are deleted, and it is recreated at once: its pods run for a
    /// while, and answer.
    pub(crate) fn make_anew(&mut self) {
        for pod in self.pods.values_mut() {
            pod.of_another = true;
        }
        for claim in self.claims.values_mut() {
            claim.terminating = true;
            claim.marked_for = None;
        }
        let again = Self::new(self.wanted_replicas);
        *self = Self {
            template: self.template,
            pods: take(&mut self.pods),
            claims: take(&mut self.claims),
            next: self.next,
            ..again
        };
    }

    pub(crate) fn scale_by_hand(&mut self, size: u32) {
        if self.set_replicas.is_some() {
            self.set_replicas = Some(size);
            self.kubernetes();
            self.elect();
        }
    }

    pub(crate) fn end_faults(&mut self) {
        // The person who deleted a claim deletes the pod too, as the condition says.
        let claims = &self.claims;
        self.pods
            .retain(|ordinal, _| !claims.get(ordinal).is_some_and(|claim| claim.terminating));
        self.kubernetes();
        for pod in self.pods.values_mut() {
            (pod.up, pod.crashing) = (true, false);
        }
        // The pauses after replacements end too.
        for replaced in self.replaced.values_mut() {
            replaced.may_again = true;
        }
        self.elect();
    }

    /// Too many volumes were lost for a quorum, or the recorded first voter's was lost before it
    /// was bootstrapped.
    pub(crate) fn data_is_lost(&self) -> bool {
        let seed = self.recorded.as_ref().and_then(|(_, seed)| seed.clone());
        let seed_gone = seed.is_some_and(|seed| self.claims.values().all(|c| c.folder_id != seed));
        let never_started = self.members.is_empty();
        if never_started {
            seed_gone
        } else {
            !self.could_have_quorum()
        }
    }

    pub(crate) fn is_as_wanted(&self) -> bool {
        let mut voters: Vec<u32> = self.voters().map(|member| member.ordinal).collect();
        voters.sort_unstable();
        voters == (0..self.wanted_replicas).collect::<Vec<_>>()
            && self.members.iter().all(|member| member.voter)
            && self.kept.is_empty()
            && self.set_replicas == Some(self.wanted_replicas)
            && self.pods.values().all(|pod| pod.template == self.template)
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            replicas: self.wanted_replicas,
            template_hash: self.template.to_string(),
        }
    }

    fn observe(&self) -> Observed {
        let reports = |pod: &SimPod, ordinal: u32| {
            let claim = self.claims.get(&ordinal).filter(|_| pod.up)?;
            (!claim.damaged).then(|| Report {
                folder_id: claim.folder_id.clone(),
                identity: claim.member_id.map(identity),
                version: "1.0.0".to_owned(),
                term: 1,
                ready: true,
                low_on_space: false,
                snapshot_lacks_bytes: 0,
                stalled: false,
            })
        };
        Observed {
            cluster_id: self.recorded.as_ref().map(|(id, _)| *id),
            seed_folder_id: self.recorded.as_ref().and_then(|(_, seed)| seed.clone()),
            had_members: self.had_members,
            stateful_set_replicas: self.set_replicas,
            pods: self
                .pods
                .iter()
                .map(|(ordinal, pod)| {
                    let view = Pod {
                        uid: pod.uid.clone(),
                        terminating: false,
                        of_another: pod.of_another,
                        ready: pod.up && !self.is_damaged(*ordinal),
                        template_hash: Some(pod.template.to_string()),
                        report: reports(pod, *ordinal),
                        trouble: (!pod.up || self.is_damaged(*ordinal))
                            .then(|| "CrashLoopBackOff".to_owned()),
                        silent: None,
                        broken: if self.is_damaged(*ordinal) {
                            Some(Broken::Folder)
                        } else {
                            pod.crashing.then_some(Broken::Crashing)
                        },
                        refused: None,
                    };
                    (*ordinal, view)
                })
                .collect(),
            claims: self
                .claims
                .iter()
                .map(|(ordinal, claim)| {
                    let view = Claim {
                        uid: claim.uid.clone(),
                        marked_for: claim.marked_for,
                        terminating: claim.terminating,
                        volume: Some(format!("volume of {}", claim.uid)),
                        ..Claim::default()
                    };
                    (*ordinal, view)
                })
                .collect(),
            membership: (self.recorded.is_some() && self.has_quorum()).then(|| self.membership()),
            replaced: self.replaced.clone(),
            kept: self.kept.clone(),
            ..Observed::default()
        }
    }

    fn membership(&self) -> Membership {
        let members = self.members.iter().map(|member| Member {
            id: member.id,
            name: format!("demo-{}", member.ordinal),
            ordinal: Some(member.ordinal),
            folder_id: member.folder_id.clone(),
            voter: member.voter,
            leader: self.leader == Some(member.id),
            reachable: self.is_live(member),
            lag_entries: 0,
        });
        Membership {
            cluster_id: CLUSTER_ID,
            term: 1,
            members: members.collect(),
        }
    }

    fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Done | Step::Wait(_) | Step::Blocked(_) => {}
            Step::Record(record) => self.record(record),
            Step::Object(step) => self.change_object(step),
            Step::Membership(step) => self.change_membership(step),
        }
    }

    fn record(&mut self, record: &Record) {
        match record {
            Record::NewCluster { folder_id, .. } => {
                assert!(
                    self.recorded.is_none() && self.bootstrapped.is_none(),
                    "a second cluster"
                );
                self.recorded = Some((CLUSTER_ID, Some(folder_id.clone())));
            }
            Record::Adopted { cluster_id } => {
                self.recorded = Some((*cluster_id, None));
            }
            Record::Replacement {
                ordinal,
                member_id,
                voted,
                ..
            } => self.record_replacement(*ordinal, *member_id, *voted),
        }
    }

    fn change_object(&mut self, step: &ObjectStep) {
        match step {
            ObjectStep::MarkClaim {
                ordinal, identity, ..
            } => {
                let claim = self.claims.get_mut(ordinal).expect("it was observed");
                claim.marked_for = Some(*identity);
            }
            ObjectStep::RestartPod { ordinal, .. } => {
                let claim = self.claims.get(ordinal).expect("a pod has a claim");
                let goes = claim.terminating && self.is_of_a_member(claim);
                assert!(!goes, "a member's volume went with its pod: {self:#?}");
                self.pods.remove(ordinal);
            }
            ObjectStep::DeleteClaim { ordinal, keep, .. } => {
                self.delete_removed(*ordinal, keep.as_deref());
            }
        }
    }

    /// The claim of a removed member, and its volume, unless that is kept.
    fn delete_removed(&mut self, ordinal: u32, keep: Option<&OldVolume>) {
        let claim = self.claims.get(&ordinal).expect("it was observed");
        assert!(!self.is_of_a_member(claim), "a member's data was deleted");
        let removed = claim.marked_for.expect("only what is marked is deleted");
        let was_given_up = self.given_up.contains(&removed.member_id);
        let may_go = keep.is_some() || self.is_done_without(ordinal);
        assert!(
            !was_given_up || may_go,
            "its volume goes before another votes: {self:#?}"
        );
        if let Some(volume) = keep {
            assert_eq!((volume.ordinal, volume.of), (ordinal, removed));
            self.kept.push(volume.clone());
            if let Some(replaced) = self.replaced.get_mut(&ordinal)
                && replaced.member_id == removed.member_id
            {
                replaced.kept_volume = Some(volume.name.clone());
            }
        }
        let claim = self.claims.get_mut(&ordinal).expect("it is there");
        claim.terminating = true;
    }

    fn change_membership(&mut self, step: &MembershipStep) {
        match step {
            MembershipStep::Bootstrap {
                ordinal, folder_id, ..
            } => self.bootstrap(*ordinal, folder_id),
            MembershipStep::AddLearner { ordinal, folder_id } => {
                self.add(*ordinal, folder_id, false);
            }
            MembershipStep::Join {
                ordinal,
                member_id,
                folder_id,
            } => {
                let claim = self.claims.get_mut(ordinal).expect("a pod has a claim");
                assert_eq!(claim.folder_id, *folder_id);
                claim.member_id = Some(*member_id);
            }
            MembershipStep::Promote { member_id, .. } => {
                let mut members = self.members.iter_mut();
                let member = members.find(|member| member.id == *member_id);
                member.expect("a member").voter = true;
            }
            MembershipStep::Remove {
                member_id,
                why: Removal::DataDamaged | Removal::Crashing,
                ..
            } if self.replaced.values().all(|r| r.member_id != *member_id) => {
                panic!("{member_id} is given up, and nobody will know: {self:#?}")
            }
            MembershipStep::Remove { member_id, .. } => {
                assert_ne!(self.leader, Some(*member_id), "a leader is not removed");
                self.members.retain(|member| member.id != *member_id);
            }
            MembershipStep::TransferLeader { member_id, .. } => {
                self.leader = Some(*member_id);
            }
        }
    }

    fn is_of_a_member(&self, claim: &SimClaim) -> bool {
        let mut folders = self.members.iter().map(|member| &member.folder_id);
        folders.any(|folder| *folder == claim.folder_id)
    }

    fn record_replacement(&mut self, ordinal: u32, member_id: u64, voted: bool) {
        let member = self.members.iter().find(|member| member.id == member_id);
        assert_eq!(member.map(|member| member.voter), Some(voted));
        if voted {
            self.given_up.insert(member_id);
        }
        let before = self.replaced.get(&ordinal);
        let pause_is_over = before.is_none_or(|last| last.may_again);
        assert!(pause_is_over, "replaced again at once: {self:#?}");
        let kept_volume = before.and_then(|last| last.kept_volume.clone());
        let replaced = Replaced {
            member_id,
            times: before.map_or(1, |last| last.times + 1),
            kept_volume: kept_volume.filter(|_| !voted),
            ..Replaced::default()
        };
        self.replaced.insert(ordinal, replaced);
    }

    /// No member is wanted in this place, and all wanted members vote.
    fn is_done_without(&self, ordinal: u32) -> bool {
        let votes = |wanted| self.voters().any(|member| member.ordinal == wanted);
        ordinal >= self.wanted_replicas && (0..self.wanted_replicas).all(votes)
    }

    fn let_go(&mut self, volumes: &[OldVolume]) {
        for volume in volumes {
            let ordinal = volume.ordinal;
            let votes = self
                .voters()
                .any(|m| m.ordinal == ordinal && self.has_data(m));
            assert!(
                votes || self.is_done_without(ordinal),
                "{volume:?} may still be needed: {self:#?}"
            );
            self.kept.retain(|kept| kept != volume);
            for replaced in self.replaced.values_mut() {
                replaced.kept_volume.take_if(|kept| *kept == volume.name);
            }
        }
    }

    fn bootstrap(&mut self, ordinal: u32, folder_id: &str) {
        assert!(self.bootstrapped.is_none(), "bootstrapped twice");
        self.bootstrapped = Some(folder_id.to_owned());
        self.add(ordinal, folder_id, true);
        let id = self.members[0].id;
        self.claims
            .get_mut(&ordinal)
            .expect("a pod has a claim")
            .member_id = Some(id);
    }

    fn add(&mut self, ordinal: u32, folder_id: &str, voter: bool) {
        self.next += 1;
        let folder_id = folder_id.to_owned();
        self.members.push(SimMember {
            id: self.next,
            ordinal,
            folder_id,
            voter,
        });
    }

    /// What the StatefulSet controller and the garbage collector do.
    fn kubernetes(&mut self) {
        let Some(size) = self.set_replicas else {
            return;
        };
        self.pods.retain(|ordinal, _| *ordinal < size);
        let pods = &self.pods;
        self.claims
            .retain(|ordinal, claim| !claim.terminating || pods.contains_key(ordinal));
        for ordinal in 0..size {
            if self.pods.contains_key(&ordinal) {
                continue;
            }
            if !self.claims.contains_key(&ordinal) {
                let claim = SimClaim {
                    uid: self.fresh("claim"),
                    folder_id: self.fresh("folder"),
                    member_id: None,
                    marked_for: None,
                    terminating: false,
                    damaged: false,
                };
                self.claims.insert(ordinal, claim);
            }
            let pod = SimPod {
                uid: self.fresh("pod"),
                up: true,
                crashing: false,
                of_another: false,
                template: self.template,
            };
            self.pods.insert(ordinal, pod);
        }
    }

    fn check_size(&self, size: u32) {
        let known = self.has_quorum() && self.recorded.is_some();
        let largest = self
            .members
            .iter()
            .map(|member| member.ordinal + 1)
            .max()
            .unwrap_or(0);
        let shrinks = self.set_replicas.is_some_and(|current| size < current);
        assert!(size >= self.wanted_replicas);
        assert!(
            !known || size >= largest,
            "a member's pod would be taken: {self:#?}"
        );
        assert!(known || !shrinks, "shrunk without knowing the members");
    }

    fn elect(&mut self) {
        let lives = |id: u64| {
            self.voters()
                .any(|member| member.id == id && self.is_live(member))
        };
        if !self.has_quorum() {
            self.leader = None;
        } else if !self.leader.is_some_and(lives) {
            let leader = self
                .voters()
                .find(|member| self.is_live(member))
                .map(|member| member.id);
            self.leader = leader;
        }
    }

    fn voters(&self) -> impl Iterator<Item = &SimMember> {
        self.members.iter().filter(|member| member.voter)
    }

    fn has_data(&self, member: &SimMember) -> bool {
        self.claims.get(&member.ordinal).is_some_and(|claim| {
            !claim.damaged
                && claim.folder_id == member.folder_id
                && claim.member_id == Some(member.id)
        })
    }

    fn is_damaged(&self, ordinal: u32) -> bool {
        self.claims.get(&ordinal).is_some_and(|claim| claim.damaged)
    }

    fn is_live(&self, member: &SimMember) -> bool {
        self.has_data(member) && self.pods.get(&member.ordinal).is_some_and(|pod| pod.up)
    }

    fn has_quorum(&self) -> bool {
        let voters = self.voters().count();
        voters > 0 && self.voters().filter(|m| self.is_live(m)).count() >= quorum(voters)
    }

    fn could_have_quorum(&self) -> bool {
        self.voters().filter(|m| self.has_data(m)).count() >= quorum(self.voters().count())
    }

    fn fresh(&mut self, what: &str) -> String {
        self.next += 1;
        format!("{what}-{}", self.next)
    }
}

fn identity(member_id: u64) -> Identity {
    Identity {
        cluster_id: CLUSTER_ID,
        member_id,
    }
}
