// SPDX-License-Identifier: Apache-2.0
//! Hash tables from vocabulary strings to ids and from pairs of strings to merge ranks. They keep
//! only numbers and compare against the string lists, so that building one copies no text.

use crate::pieces::StrList;
use hashbrown::HashTable;

/// 64-bit hash of short strings: eight bytes per step, folded by a 128-bit product.
pub fn hash_bytes(s: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    fn fold(a: u64, b: u64) -> u64 {
        let p = (a as u128) * (b as u128);
        (p as u64) ^ ((p >> 64) as u64)
    }
    let mut h = (s.len() as u64).wrapping_mul(K) ^ 0x2545_f491_4f6c_dd1d;
    let mut chunks = s.chunks_exact(8);
    for c in &mut chunks {
        h = fold(h ^ u64::from_le_bytes(c.try_into().unwrap()), K);
    }
    let mut last = [0u8; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    fold(h ^ u64::from_le_bytes(last), K | 1)
}

fn hash_pair(left: &[u8], right: &[u8]) -> u64 {
    hash_bytes(left).rotate_left(23) ^ hash_bytes(right)
}

/// string -> its index in the list. If a string occurs twice, the first occurrence counts.
pub struct StrTable {
    table: HashTable<(u32, u32)>, // (upper half of the hash, index)
}

impl StrTable {
    pub fn build(list: &StrList) -> Self {
        let mut table = HashTable::with_capacity(list.len());
        for i in 0..list.len() {
            let s = list.get(i);
            let h = hash_bytes(s);
            let tag = (h >> 32) as u32;
            if table
                .find(h, |&(t, j)| t == tag && list.get(j as usize) == s)
                .is_none()
            {
                table.insert_unique(h, (tag, i as u32), |&(_, j)| {
                    hash_bytes(list.get(j as usize))
                });
            }
        }
        StrTable { table }
    }

    pub fn find(&self, list: &StrList, s: &[u8]) -> Option<u32> {
        let h = hash_bytes(s);
        let tag = (h >> 32) as u32;
        self.table
            .find(h, |&(t, j)| t == tag && list.get(j as usize) == s)
            .map(|&(_, j)| j)
    }
}

/// (left, right) -> rank, from merges written "left right". The left part may begin with a space, so the search for the
/// separating space begins at the second byte.
pub struct MergeTable {
    table: HashTable<(u32, u32)>, // (upper half of the hash, rank)
}

fn split_merge(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = 1 + merge.get(1..)?.iter().position(|&b| b == b' ')?;
    Some((&merge[..at], &merge[at + 1..]))
}

impl MergeTable {
    pub fn build(merges: &StrList) -> Result<Self, String> {
        let mut table = HashTable::with_capacity(merges.len());
        for i in 0..merges.len() {
            let merge = merges.get(i);
            let (left, right) = split_merge(merge).ok_or_else(|| {
                format!(
                    "merge {} of the vocabulary, \"{}\", is not two parts",
                    i,
                    String::from_utf8_lossy(merge)
                )
            })?;
            let h = hash_pair(left, right);
            let tag = (h >> 32) as u32;
            if table
                .find(h, |&(t, j)| t == tag && merges.get(j as usize) == merge)
                .is_none()
            {
                table.insert_unique(h, (tag, i as u32), |&(_, j)| {
                    let (l, r) = split_merge(merges.get(j as usize)).unwrap();
                    hash_pair(l, r)
                });
            }
        }
        Ok(MergeTable { table })
    }

    pub fn rank(&self, merges: &StrList, left: &[u8], right: &[u8]) -> Option<u32> {
        let h = hash_pair(left, right);
        let tag = (h >> 32) as u32;
        self.table
            .find(h, |&(t, j)| {
                let m = merges.get(j as usize);
                t == tag
                    && m.len() == left.len() + 1 + right.len()
                    && m.starts_with(left)
                    && m[left.len()] == b' '
                    && m.ends_with(right)
            })
            .map(|&(_, j)| j)
    }
}
