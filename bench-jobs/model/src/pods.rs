//! Pods that send one load together: how many there may be, where they meet, and how many of them a
//! workload comes from.

use crate::profiles::{NamedWorkload, Profile};
use crate::results::{Shape, Workload};

/// Most pods of a run.
pub const MAX: u32 = 32;
/// Where the first pod listens for the others.
pub const PORT: u16 = 4104;

/// How many of the pods a workload comes from. Each of them has at least one connection, and each
/// connection a client, as with one pod; so a workload of one client comes from the first alone. So
/// does one with more connections than clients: those carry watches, which belong to a client. And
/// one with a part that is not divided: members that show a write, or clients that list all keys.
#[must_use]
pub fn loading(pods: u32, shape: &Shape) -> u32 {
    if shape.connections > shape.clients
        || matches!(shape.workload, Workload::Seen | Workload::List)
    {
        1
    } else {
        pods.min(shape.connections).max(1)
    }
}

/// Why a profile is not for so many pods, if none of its workloads would come from all of them.
#[must_use]
pub fn refusal(pods: u32, profile: &Profile) -> Option<String> {
    let shapes = profile.workloads.iter().map(NamedWorkload::shape);
    let most = shapes.map(|shape| loading(pods, &shape)).max().unwrap_or(1);
    (most < pods).then(|| {
        format!(
            "no workload of profile {} has connections for {pods} pods, only for {most}",
            profile.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::{profile, workload_named};

    #[test]
    fn every_pod_that_loads_has_a_connection_with_a_client() {
        let loading = |pods, name| loading(pods, &workload_named(name).unwrap().shape());
        assert_eq!(loading(4, "standard/write"), 4);
        assert_eq!(loading(4, "standard/single-write"), 1);
        assert_eq!(loading(32, "t4/par-put"), 16);
        assert_eq!(
            loading(4, "watch-fan-out"),
            1,
            "all watches are of one client"
        );
        assert_eq!(loading(4, "extra/par-put-seen"), 1);
        assert_eq!(loading(4, "extra/list-while-writing"), 1);
        assert_eq!(loading(1, "standard/write"), 1);
    }

    #[test]
    fn a_profile_is_refused_that_is_too_small_for_the_pods() {
        let refusal = |pods, name| refusal(pods, profile(name).unwrap());
        assert_eq!(refusal(10, "small"), None);
        let words = "no workload of profile small has connections for 11 pods, only for 10";
        assert_eq!(refusal(11, "small").as_deref(), Some(words));
        assert_eq!(refusal(32, "standard"), None);
    }
}
