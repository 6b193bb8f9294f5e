//! The names of all directories, and which of them are durable.

use super::Inode;
use super::coins::Coins;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

/// A name in a directory.
pub(super) type Entry = (Inode, OsString);
type Entries = BTreeMap<Entry, Inode>;

/// What one operation makes of names: it reaches the disk whole or not at all, so that a rename never survives by half.
#[derive(Clone, Debug)]
pub(super) struct Change(pub(super) Vec<(Entry, Option<Inode>)>);

impl Change {
    fn apply(&self, entries: &mut Entries) {
        for (entry, inode) in &self.0 {
            match inode {
                Some(inode) => entries.insert(entry.clone(), *inode),
                None => entries.remove(entry),
            };
        }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter().map(|(entry, _)| entry)
    }

    fn is_in(&self, directory: Inode) -> bool {
        self.entries().any(|(parent, _)| *parent == directory)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    current: Entries,
    durable: Entries,
    /// What leads from `durable` to `current`.
    pending: Vec<Change>,
}

impl Names {
    pub(super) fn get(&self, directory: Inode, name: &OsStr) -> Option<Inode> {
        self.current.get(&(directory, name.to_owned())).copied()
    }

    pub(super) fn list(&self, directory: Inode) -> impl Iterator<Item = (&OsStr, Inode)> {
        list(&self.current, directory)
    }

    pub(super) fn links(&self, inode: Inode) -> usize {
        self.current.values().filter(|it| **it == inode).count()
    }

    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    /// Makes the names of one directory durable, and what has to be on disk before them.
    pub(super) fn sync(&mut self, directory: Inode) {
        let mut needed: BTreeSet<Entry> = BTreeSet::new();
        let (mut synced, mut left) = (Vec::new(), Vec::new());
        for change in self.pending.drain(..).rev() {
            let is_needed = change.entries().any(|entry| needed.contains(entry));
            if is_needed || change.is_in(directory) {
                needed.extend(change.entries().cloned());
                synced.push(change);
            } else {
                left.push(change);
            }
        }
        for change in synced.iter().rev() {
            change.apply(&mut self.durable);
        }
        left.reverse();
        self.pending = left;
    }

    /// What is there after the power was gone, all of it durable. Changes of one name survive in their order; those of
    /// different names do not wait for each other.
    pub(super) fn survivor(&self, coins: &mut Coins) -> Self {
        let mut entries = self.durable.clone();
        let mut lost: BTreeSet<&Entry> = BTreeSet::new();
        for change in &self.pending {
            let possible = !change.entries().any(|entry| lost.contains(entry));
            if coins.toss() && possible {
                change.apply(&mut entries);
            } else {
                lost.extend(change.entries());
            }
        }
        // What a name leads to that nothing leads to is gone.
        let found = inodes(&entries);
        entries.retain(|(directory, _), _| found.contains(directory));
        Self {
            current: entries.clone(),
            durable: entries,
            pending: Vec::new(),
        }
    }

    /// The root and everything below it.
    pub(super) fn inodes(&self) -> BTreeSet<Inode> {
        inodes(&self.current)
    }
}

fn list(entries: &Entries, directory: Inode) -> impl Iterator<Item = (&OsStr, Inode)> {
    entries
        .range((directory, OsString::new())..)
        .take_while(move |((parent, _), _)| *parent == directory)
        .map(|((_, name), inode)| (name.as_os_str(), *inode))
}

fn inodes(entries: &Entries) -> BTreeSet<Inode> {
    let mut found = BTreeSet::from([Inode::ROOT]);
    let mut unseen = vec![Inode::ROOT];
    while let Some(directory) = unseen.pop() {
        for (_, inode) in list(entries, directory) {
            if found.insert(inode) {
                unseen.push(inode);
            }
        }
    }
    found
}
