//! The point of a cluster's history that a client has seen, which its session reads must not fall
//! behind.

/// A cluster and the highest revision that was seen of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// The cluster; 0 as long as nothing was seen.
    pub cluster_id: u64,
    /// The highest revision of it that an answer named.
    pub revision: u64,
}

impl Position {
    /// Notes the revision that an answer named. An answer of another cluster is passed over: the
    /// next session read then says that the cluster is not the one it was, instead of forgetting
    /// what was seen.
    pub fn saw(&mut self, cluster_id: u64, revision: u64) {
        if self.cluster_id == 0 {
            self.cluster_id = cluster_id;
        }
        if self.cluster_id == cluster_id {
            self.revision = self.revision.max(revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_only_moves_forward_and_stays_with_one_cluster() {
        let mut position = Position::default();
        for (cluster_id, revision, expect) in [(7, 5, 5), (7, 3, 5), (8, 9, 5), (7, 6, 6)] {
            position.saw(cluster_id, revision);
            assert_eq!((position.cluster_id, position.revision), (7, expect));
        }
    }
}
