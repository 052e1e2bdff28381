// SPDX-License-Identifier: Apache-2.0
//! Which terminals of a plan a lexer would read further than the grammar means.

use crate::ebnf::{CharClass, Node};
use crate::ebnf_plan::{Item, Plan, Symbol};
use std::collections::HashSet;

/// Characters in all terminals between rules that recur.
const MAX_POSITIONS: usize = 4000;
/// Pairs of places in terminals that the same text leads to.
const MAX_PAIRS: usize = 1_000_000;

/// Characters as far as greed is concerned: those beyond ASCII may share their first bytes, so they
/// count as one.
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

    /// Whether anything was new.
    fn add(&mut self, other: Self) -> bool {
        let before = *self;
        self.ascii |= other.ascii;
        self.others |= other.others;
        *self != before
    }
}

/// What a part of a terminal looks like from outside; places are indices into Greed::places.
struct Part {
    nullable: bool,
    first: Vec<usize>,
    last: Vec<usize>,
}

/// A character of a terminal.
struct Place {
    terminal: usize,
    chars: Chars,
    next: Vec<usize>,
    ends: bool,
}

/// Where the lexer could read on though it should not.
pub struct Greed<'a> {
    plan: &'a Plan<'a>,
    places: Vec<Place>,
    /// By terminal; none of those taken apart.
    parts: Vec<Option<Part>>,
}

impl<'a> Greed<'a> {
    pub fn new(plan: &'a Plan<'a>) -> Result<Self, String> {
        let mut greed = Greed {
            plan,
            places: Vec::new(),
            parts: Vec::new(),
        };
        // A grammar of one terminal has nothing to follow it.
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
        Ok(match node {
            Node::Text(text) => {
                let mut whole = Part::empty();
                for c in text.chars() {
                    let letter = self.place(Chars::of_char(c), terminal)?;
                    whole = self.joined(whole, letter);
                }
                whole
            }
            Node::Class(class) => self.place(Chars::of_class(class), terminal)?,
            Node::Rule(index) => self.part(&self.plan.ebnf.rules[*index], terminal)?,
            Node::Seq(all) => {
                let mut whole = Part::empty();
                for node in all {
                    let next = self.part(node, terminal)?;
                    whole = self.joined(whole, next);
                }
                whole
            }
            Node::Alt(all) => {
                let mut whole = Part::empty();
                whole.nullable = false;
                for node in all {
                    let part = self.part(node, terminal)?;
                    whole.nullable |= part.nullable;
                    whole.first.extend(part.first);
                    whole.last.extend(part.last);
                }
                whole
            }
            // Often counts as without an end, which at worst takes apart what need not be.
            Node::Repeat(inner, least, most) => {
                let mut part = self.part(inner, terminal)?;
                if *most != Some(1) {
                    for &place in &part.last {
                        self.places[place].next.extend(&part.first);
                    }
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

    fn joined(&mut self, mut a: Part, b: Part) -> Part {
        for &place in &a.last {
            self.places[place].next.extend(&b.first);
        }
        if a.nullable {
            a.first.extend(&b.first);
        }
        if b.nullable {
            a.last.extend(&b.last);
        } else {
            a.last = b.last;
        }
        a.nullable &= b.nullable;
        a
    }

    /// Terminals that can go on, after a text that another one (or the same) ends with, by a character
    /// that may follow it there.
    pub fn too_greedy(&self) -> Result<Vec<usize>, String> {
        let follow = Follow::new(self);
        let first = |part: &Option<Part>| part.as_ref().map_or(Vec::new(), |p| p.first.clone());
        let firsts: Vec<usize> = self.parts.iter().flat_map(first).collect();
        let mut greedy = HashSet::new();
        let mut seen = HashSet::new();
        let mut open = Vec::new();
        self.pair_up(&firsts, &firsts, &mut seen, &mut open);
        while let Some((p, q)) = open.pop() {
            if seen.len() > MAX_PAIRS {
                return Err("too ambiguous beside rules that recur".into());
            }
            let (ended, going_on) = (&self.places[p], &self.places[q]);
            let may_follow = follow.terminals[ended.terminal];
            let reads_on = |&next: &usize| self.places[next].chars.meets(may_follow);
            if ended.ends && going_on.next.iter().any(reads_on) {
                greedy.insert(going_on.terminal);
            }
            self.pair_up(&ended.next, &going_on.next, &mut seen, &mut open);
        }
        let mut greedy: Vec<usize> = greedy.into_iter().collect();
        greedy.sort_unstable();
        Ok(greedy)
    }

    fn pair_up(
        &self,
        a: &[usize],
        b: &[usize],
        seen: &mut HashSet<(usize, usize)>,
        open: &mut Vec<(usize, usize)>,
    ) {
        for &p in a {
            for &q in b {
                if self.places[p].chars.meets(self.places[q].chars) && seen.insert((p, q)) {
                    open.push((p, q));
                }
            }
        }
    }
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

/// Which characters may come first in rules, and after terminals.
struct Follow {
    nullable: Vec<bool>,
    first: Vec<Chars>,
    rules: Vec<Chars>,
    terminals: Vec<Chars>,
}

impl Follow {
    fn new(greed: &Greed) -> Self {
        let plan = greed.plan;
        let mut follow = Follow {
            nullable: vec![false; plan.rules.len()],
            first: vec![Chars::default(); plan.rules.len()],
            rules: vec![Chars::default(); plan.rules.len()],
            terminals: vec![Chars::default(); plan.terminals.len()],
        };
        while follow.grow_firsts(greed) {}
        while follow.grow(greed) {}
        follow
    }

    fn nullable(&self, greed: &Greed, item: &Item) -> bool {
        item.least == 0
            || match greed.plan.resolve(item.symbol) {
                Symbol::Terminal(t) => greed.parts[t].as_ref().is_none_or(|p| p.nullable),
                Symbol::Rule(r) => self.nullable[r],
            }
    }

    fn first(&self, greed: &Greed, item: &Item) -> Chars {
        let mut chars = Chars::default();
        match greed.plan.resolve(item.symbol) {
            Symbol::Terminal(t) => {
                for &place in greed.parts[t].iter().flat_map(|p| &p.first) {
                    chars.add(greed.places[place].chars);
                }
            }
            Symbol::Rule(r) => chars = self.first[r],
        }
        chars
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
