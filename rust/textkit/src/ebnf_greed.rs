// SPDX-License-Identifier: Apache-2.0
//! Finds the terminals of a plan that a greedy lexer would extend too far.

use crate::ebnf::{CharClass, Node};
use crate::ebnf_plan::{Item, Plan, Symbol};
use std::collections::HashSet;

/// Limit of the characters in all terminals between recursive rules.
const MAX_POSITIONS: usize = 4000;
/// Limit of the work of a translation, over all its rounds: less than a second, and some 100 MB.
const MAX_WORK: usize = 20_000_000;
/// The cost of visiting a part, which may be copied when its terminal is taken apart.
const PART_WORK: usize = 10;
/// The cost of storing a pair, in addition to finding it.
const PAIR_WORK: usize = 10;

/// The work budget that a translation has left. A grammar of a few lines can describe more than any memory can hold.
pub struct Work {
    left: usize,
}

impl Work {
    pub fn new() -> Self {
        Work { left: MAX_WORK }
    }

    fn spend(&mut self, steps: usize) -> Result<(), String> {
        let left = self.left.checked_sub(steps);
        self.left = left.ok_or("too complex beside rules that recur")?;
        Ok(())
    }
}

/// A set of characters. Characters beyond ASCII may share their first bytes, so they count as one character.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Chars {
    ascii: u128,
    others: bool,
}

impl Chars {
    fn of_char(c: char) -> Self {
        Chars {
            ascii: if c.is_ascii() { 1 << u32::from(c) } else { 0 },
            others: !c.is_ascii(),
        }
    }

    fn of_class(class: &CharClass) -> Self {
        let listed = |c: u8| {
            class
                .ranges
                .iter()
                .any(|&(a, b)| a <= c as char && c as char <= b)
        };
        let mut chars = Chars {
            ascii: 0,
            others: class.negated || class.ranges.iter().any(|&(_, last)| !last.is_ascii()),
        };
        for c in (0..128).filter(|&c| listed(c) != class.negated) {
            chars.ascii |= 1 << c;
        }
        chars
    }

    fn meets(self, other: Self) -> bool {
        self.ascii & other.ascii != 0 || (self.others && other.others)
    }

    /// Adds the characters. Returns whether one of them is new.
    fn add(&mut self, other: Self) -> bool {
        let before = *self;
        self.ascii |= other.ascii;
        self.others |= other.others;
        *self != before
    }
}

/// The interface of a part of a terminal: whether it may be empty, and its first and last places. Places are indices
/// into Greed::places.
struct Part {
    nullable: bool,
    first: Vec<usize>,
    last: Vec<usize>,
}

/// The place of one character in a terminal.
struct Place {
    terminal: usize,
    chars: Chars,
    /// Indices into Greed::lists.
    next: Vec<usize>,
    ends: bool,
}

/// Places that may follow a place. All places with the same followers share the list.
struct List {
    places: Vec<usize>,
    /// The union over all its places.
    chars: Chars,
}

/// Finds terminals that the lexer could extend past the text that the grammar means.
pub struct Greed<'a> {
    plan: &'a Plan<'a>,
    work: &'a mut Work,
    places: Vec<Place>,
    lists: Vec<List>,
    /// By terminal. None for terminals that are taken apart.
    parts: Vec<Option<Part>>,
}

impl<'a> Greed<'a> {
    pub fn new(plan: &'a Plan<'a>, work: &'a mut Work) -> Result<Self, String> {
        let mut greed = Greed {
            plan,
            work,
            places: Vec::new(),
            lists: Vec::new(),
            parts: Vec::new(),
        };
        // In a grammar of one terminal nothing follows it.
        let single = plan.rules.is_empty();
        for (index, node) in plan.terminals.iter().enumerate() {
            let part = if plan.apart.contains_key(&index) || single {
                None
            } else {
                let part = greed.part(node, index)?;
                for &place in &part.last {
                    greed.places[place].ends = true;
                }
                Some(part)
            };
            greed.parts.push(part);
        }
        Ok(greed)
    }

    fn part(&mut self, node: &Node, terminal: usize) -> Result<Part, String> {
        self.work.spend(PART_WORK)?;
        Ok(match node {
            Node::Text(text) => {
                let mut whole = Part::empty();
                for c in text.chars() {
                    let letter = self.place(Chars::of_char(c), terminal)?;
                    whole = self.joined(whole, letter)?;
                }
                whole
            }
            Node::Class(class) => self.place(Chars::of_class(class), terminal)?,
            Node::Rule(index) => self.part(&self.plan.ebnf.rules[*index], terminal)?,
            Node::Seq(all) => {
                let mut whole = Part::empty();
                for node in all {
                    let next = self.part(node, terminal)?;
                    whole = self.joined(whole, next)?;
                }
                whole
            }
            Node::Alt(all) => {
                let mut whole = Part::empty();
                whole.nullable = false;
                for node in all {
                    let part = self.part(node, terminal)?;
                    self.work.spend(part.first.len() + part.last.len())?;
                    whole.nullable |= part.nullable;
                    whole.first.extend(part.first);
                    whole.last.extend(part.last);
                }
                whole
            }
            // More than one repetition counts as unlimited. At worst this takes apart a terminal without need.
            Node::Repeat(inner, least, most) => {
                let mut part = self.part(inner, terminal)?;
                if *most != Some(1) {
                    self.lead(&part.last, &part.first)?;
                }
                part.nullable |= *least == 0;
                part
            }
        })
    }

    fn place(&mut self, chars: Chars, terminal: usize) -> Result<Part, String> {
        let index = self.places.len();
        if index == MAX_POSITIONS {
            return Err(format!(
                "too large beside rules that recur: more than {MAX_POSITIONS} characters"
            ));
        }
        self.places.push(Place {
            terminal,
            chars,
            next: Vec::new(),
            ends: false,
        });
        Ok(Part {
            nullable: false,
            first: vec![index],
            last: vec![index],
        })
    }

    fn joined(&mut self, mut a: Part, b: Part) -> Result<Part, String> {
        self.work.spend(b.first.len() + b.last.len())?;
        self.lead(&a.last, &b.first)?;
        if a.nullable {
            a.first.extend(&b.first);
        }
        if b.nullable {
            a.last.extend(&b.last);
        } else {
            a.last = b.last;
        }
        a.nullable &= b.nullable;
        Ok(a)
    }

    /// Records that each place of `to` may follow each place of `from`.
    fn lead(&mut self, from: &[usize], to: &[usize]) -> Result<(), String> {
        if from.is_empty() || to.is_empty() {
            return Ok(());
        }
        let list = self.list(to.to_vec())?;
        self.work.spend(from.len())?;
        for &place in from {
            self.places[place].next.push(list);
        }
        Ok(())
    }

    fn list(&mut self, places: Vec<usize>) -> Result<usize, String> {
        self.work.spend(places.len())?;
        let mut chars = Chars::default();
        for &place in &places {
            chars.add(self.places[place].chars);
        }
        self.lists.push(List { places, chars });
        Ok(self.lists.len() - 1)
    }

    /// The terminals that are too greedy: after a text that completes another terminal (or the same), they can continue
    /// with a character that may also follow that terminal.
    pub fn too_greedy(mut self) -> Result<Vec<usize>, String> {
        let follow = Follow::new(&mut self)?;
        let first = |part: &Option<Part>| part.as_ref().map_or(Vec::new(), |p| p.first.clone());
        let firsts = self.parts.iter().flat_map(first).collect();
        let firsts = self.list(firsts)?;
        let mut greedy = HashSet::new();
        let num_places = self.places.len();
        self.work.spend(num_places * num_places / 64)?;
        let mut pairs = Pairs {
            lists: HashSet::new(),
            seen: vec![false; num_places * num_places],
            open: Vec::new(),
        };
        self.pair_up(firsts, firsts, &mut pairs)?;
        while let Some((p, q)) = pairs.open.pop() {
            let num_lists = (self.places[p].next.len(), self.places[q].next.len());
            self.work.spend(num_lists.0 * num_lists.1 + num_lists.1)?;
            let may_follow = follow.terminals[self.places[p].terminal];
            let reads_on = |&next: &usize| self.lists[next].chars.meets(may_follow);
            if self.places[p].ends && self.places[q].next.iter().any(reads_on) {
                greedy.insert(self.places[q].terminal);
            }
            for i in 0..num_lists.0 {
                for j in 0..num_lists.1 {
                    let (a, b) = (self.places[p].next[i], self.places[q].next[j]);
                    self.pair_up(a, b, &mut pairs)?;
                }
            }
        }
        let mut greedy: Vec<usize> = greedy.into_iter().collect();
        greedy.sort_unstable();
        Ok(greedy)
    }

    /// Adds the pairs of places of two lists, unless these lists have been paired before.
    fn pair_up(&mut self, a: usize, b: usize, pairs: &mut Pairs) -> Result<(), String> {
        if !pairs.lists.insert((a, b)) {
            return Ok(());
        }
        let (a, b) = (&self.lists[a].places, &self.lists[b].places);
        self.work.spend(PAIR_WORK + a.len() * b.len())?;
        for &p in a {
            for &q in b {
                let seen = &mut pairs.seen[p * self.places.len() + q];
                if !*seen && self.places[p].chars.meets(self.places[q].chars) {
                    *seen = true;
                    self.work.spend(PAIR_WORK)?;
                    pairs.open.push((p, q));
                }
            }
        }
        Ok(())
    }
}

/// Pairs of places, and of lists of places, that the same text can reach.
struct Pairs {
    lists: HashSet<(usize, usize)>,
    /// By place and place.
    seen: Vec<bool>,
    /// The pairs of `seen` whose next places are not paired yet.
    open: Vec<(usize, usize)>,
}

impl Part {
    fn empty() -> Self {
        Part {
            nullable: true,
            first: Vec::new(),
            last: Vec::new(),
        }
    }
}

/// The characters that may begin rules and follow terminals.
struct Follow {
    nullable: Vec<bool>,
    first: Vec<Chars>,
    rules: Vec<Chars>,
    terminals: Vec<Chars>,
    /// The first characters of each terminal.
    starts: Vec<Chars>,
}

impl Follow {
    fn new(greed: &mut Greed) -> Result<Self, String> {
        let plan = greed.plan;
        let start = |part: &Option<Part>| {
            let mut chars = Chars::default();
            for &place in part.iter().flat_map(|p| &p.first) {
                chars.add(greed.places[place].chars);
            }
            chars
        };
        let mut follow = Follow {
            nullable: vec![false; plan.rules.len()],
            first: vec![Chars::default(); plan.rules.len()],
            rules: vec![Chars::default(); plan.rules.len()],
            terminals: vec![Chars::default(); plan.terminals.len()],
            starts: greed.parts.iter().map(start).collect(),
        };
        let sizes = plan
            .rules
            .iter()
            .flatten()
            .map(|sequence| 1 + sequence.len());
        let round: usize = plan.rules.len() + sizes.sum::<usize>();
        for grow in [Self::grow_firsts, Self::grow] {
            greed.work.spend(round)?;
            while grow(&mut follow, greed) {
                greed.work.spend(round)?;
            }
        }
        Ok(follow)
    }

    fn nullable(&self, greed: &Greed, item: &Item) -> bool {
        item.least == 0
            || match greed.plan.resolve(item.symbol) {
                Symbol::Terminal(t) => greed.parts[t].as_ref().is_none_or(|p| p.nullable),
                Symbol::Rule(r) => self.nullable[r],
            }
    }

    fn first(&self, greed: &Greed, item: &Item) -> Chars {
        match greed.plan.resolve(item.symbol) {
            Symbol::Terminal(t) => self.starts[t],
            Symbol::Rule(r) => self.first[r],
        }
    }

    fn grow_firsts(&mut self, greed: &Greed) -> bool {
        let mut grew = false;
        for (rule, alternatives) in greed.plan.rules.iter().enumerate() {
            for sequence in alternatives {
                let needed = sequence.iter().position(|item| !self.nullable(greed, item));
                for item in &sequence[..needed.map_or(sequence.len(), |n| n + 1)] {
                    let chars = self.first(greed, item);
                    grew |= self.first[rule].add(chars);
                }
                if needed.is_none() && !self.nullable[rule] {
                    self.nullable[rule] = true;
                    grew = true;
                }
            }
        }
        grew
    }

    fn grow(&mut self, greed: &Greed) -> bool {
        let mut grew = false;
        for (rule, alternatives) in greed.plan.rules.iter().enumerate() {
            for sequence in alternatives {
                let mut after = self.rules[rule];
                for item in sequence.iter().rev() {
                    let first = self.first(greed, item);
                    let mut here = after;
                    if item.most != Some(1) {
                        here.add(first);
                    }
                    grew |= match greed.plan.resolve(item.symbol) {
                        Symbol::Terminal(t) => self.terminals[t].add(here),
                        Symbol::Rule(r) => self.rules[r].add(here),
                    };
                    if self.nullable(greed, item) {
                        after.add(first);
                    } else {
                        after = first;
                    }
                }
            }
        }
        grew
    }
}
