// SPDX-License-Identifier: Apache-2.0
//! Divides EBNF into rules for a parser and terminals for a lexer.

use crate::ebnf::{Ebnf, Node};
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    Terminal(usize),
    Rule(usize),
}

#[derive(Clone, Copy)]
pub struct Item {
    pub symbol: Symbol,
    pub least: u32,
    pub most: Option<u32>,
}

pub type Sequence = Vec<Item>;

/// Rules over terminals: the parser's part and the lexer's.
pub struct Plan<'a> {
    pub ebnf: &'a Ebnf,
    /// By rule of the EBNF: whether it is not recursive and refers to no recursive rule.
    regular: Vec<bool>,
    /// The alternatives of each rule. A rule is empty until it is complete.
    pub rules: Vec<Vec<Sequence>>,
    rule_of_name: HashMap<usize, usize>,
    pub terminals: Vec<Node>,
    terminal_of: HashMap<Node, usize>,
    /// Terminals that are taken apart, and the rules that replace them.
    pub apart: HashMap<usize, usize>,
    pub start: Item,
}

impl<'a> Plan<'a> {
    pub fn new(ebnf: &'a Ebnf) -> Self {
        let mut plan = Plan {
            ebnf,
            regular: regular_rules(ebnf),
            rules: Vec::new(),
            rule_of_name: HashMap::new(),
            terminals: Vec::new(),
            terminal_of: HashMap::new(),
            apart: HashMap::new(),
            start: once(Symbol::Rule(0)),
        };
        plan.start = plan.item(&Node::Rule(ebnf.root));
        plan
    }

    fn is_regular(&self, node: &Node) -> bool {
        match node {
            Node::Text(_) | Node::Class(_) => true,
            Node::Rule(index) => self.regular[*index],
            Node::Seq(all) | Node::Alt(all) => all.iter().all(|n| self.is_regular(n)),
            Node::Repeat(inner, ..) => self.is_regular(inner),
        }
    }

    fn terminal(&mut self, node: Node) -> Item {
        let next = self.terminals.len();
        let index = *self.terminal_of.entry(node.clone()).or_insert(next);
        if index == next {
            self.terminals.push(node);
        }
        once(Symbol::Terminal(index))
    }

    fn item(&mut self, node: &Node) -> Item {
        if self.is_regular(node) {
            return self.terminal(node.clone());
        }
        match node {
            Node::Repeat(inner, least, most) => {
                let item = self.item(inner);
                repeat(self.alone(item), *least, *most)
            }
            Node::Rule(name) => {
                if let Some(rule) = self.rule_of_name.get(name) {
                    return once(Symbol::Rule(*rule));
                }
                let rule = self.new_rule();
                self.rule_of_name.insert(*name, rule);
                self.rules[rule] = self.alternatives(&self.ebnf.rules[*name]);
                once(Symbol::Rule(rule))
            }
            _ => {
                let rule = self.new_rule();
                self.rules[rule] = self.alternatives(node);
                once(Symbol::Rule(rule))
            }
        }
    }

    fn new_rule(&mut self) -> usize {
        self.rules.push(Vec::new());
        self.rules.len() - 1
    }

    /// Wraps a repeated item in a rule, so that the result occurs exactly once.
    fn alone(&mut self, item: Item) -> Item {
        if item.least == 1 && item.most == Some(1) {
            return item;
        }
        let rule = self.new_rule();
        self.rules[rule] = vec![vec![item]];
        once(Symbol::Rule(rule))
    }

    /// All regular alternatives share one terminal.
    fn alternatives(&mut self, node: &Node) -> Vec<Sequence> {
        let Node::Alt(all) = node else {
            return vec![self.sequence(node)];
        };
        let (regular, others): (Vec<&Node>, Vec<&Node>) =
            all.iter().partition(|n| self.is_regular(n));
        let mut out = Vec::new();
        if !regular.is_empty() {
            let joined = Node::Alt(regular.into_iter().cloned().collect());
            out.push(vec![self.terminal(joined)]);
        }
        out.extend(others.into_iter().map(|n| self.sequence(n)));
        out
    }

    /// Adjacent regular parts share one terminal.
    fn sequence(&mut self, node: &Node) -> Sequence {
        let Node::Seq(all) = node else {
            return vec![self.item(node)];
        };
        let mut out = Vec::new();
        let mut run = Vec::new();
        for node in all {
            if self.is_regular(node) {
                run.push(node.clone());
                continue;
            }
            self.end_run(&mut run, &mut out);
            out.push(self.item(node));
        }
        self.end_run(&mut run, &mut out);
        out
    }

    fn end_run(&mut self, run: &mut Vec<Node>, out: &mut Sequence) {
        if !run.is_empty() {
            let node = Node::Seq(std::mem::take(run));
            out.push(self.terminal(node));
        }
    }

    /// Replaces the terminal by a rule whose terminals are the parts of the old one.
    pub fn take_apart(&mut self, terminal: usize) {
        let alternatives = match self.terminals[terminal].clone() {
            Node::Text(text) => {
                let letters = text.chars().map(|c| Node::Text(c.into()));
                vec![letters.map(|n| self.terminal(n)).collect()]
            }
            Node::Class(_) => unreachable!("one character cannot go on"),
            Node::Rule(name) => vec![vec![self.terminal(self.ebnf.rules[name].clone())]],
            Node::Seq(all) => vec![all.into_iter().map(|n| self.terminal(n)).collect()],
            Node::Alt(all) => all.into_iter().map(|n| vec![self.terminal(n)]).collect(),
            Node::Repeat(inner, least, most) => {
                vec![vec![repeat(self.terminal(*inner), least, most)]]
            }
        };
        let rule = self.new_rule();
        self.rules[rule] = alternatives;
        self.apart.insert(terminal, rule);
    }

    pub fn resolve(&self, symbol: Symbol) -> Symbol {
        match symbol {
            Symbol::Terminal(index) => self.apart.get(&index).map_or(symbol, |r| Symbol::Rule(*r)),
            Symbol::Rule(_) => symbol,
        }
    }
}

fn once(symbol: Symbol) -> Item {
    Item {
        symbol,
        least: 1,
        most: Some(1),
    }
}

fn repeat(item: Item, least: u32, most: Option<u32>) -> Item {
    Item {
        least,
        most,
        ..item
    }
}

fn regular_rules(ebnf: &Ebnf) -> Vec<bool> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done(bool),
    }
    fn visit(ebnf: &Ebnf, index: usize, marks: &mut [Mark]) -> bool {
        match marks[index] {
            Mark::New => {
                marks[index] = Mark::Open;
                let regular = visit_node(ebnf, &ebnf.rules[index], marks);
                marks[index] = Mark::Done(regular);
                regular
            }
            Mark::Open => false,
            Mark::Done(regular) => regular,
        }
    }
    fn visit_node(ebnf: &Ebnf, node: &Node, marks: &mut [Mark]) -> bool {
        match node {
            Node::Text(_) | Node::Class(_) => true,
            Node::Rule(index) => visit(ebnf, *index, marks),
            Node::Seq(all) | Node::Alt(all) => {
                // Visit all of them, so that each gets its mark.
                let parts: Vec<bool> = all.iter().map(|n| visit_node(ebnf, n, marks)).collect();
                parts.into_iter().all(|regular| regular)
            }
            Node::Repeat(inner, ..) => visit_node(ebnf, inner, marks),
        }
    }
    let mut marks = vec![Mark::New; ebnf.rules.len()];
    (0..ebnf.rules.len())
        .map(|index| visit(ebnf, index, &mut marks))
        .collect()
}
