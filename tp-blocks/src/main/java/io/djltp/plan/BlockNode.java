package io.djltp.plan;

import ai.djl.nn.Block;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A block of a network, once, however many places hold it. */
final class BlockNode {

    private final Block block;
    private final String path;
    private final List<BlockSlot> slots = new ArrayList<>();
    private final Map<BlockNode, List<List<String>>> below = new LinkedHashMap<>();

    /**
     * Creates a node.
     *
     * @param block the block
     * @param path where it was found first
     */
    BlockNode(Block block, String path) {
        this.block = block;
        this.path = path;
    }

    Block block() {
        return block;
    }

    /** Returns where the block was found first; the root has an empty path. */
    String path() {
        return path;
    }

    /** Returns the places that hold the block. */
    List<BlockSlot> slots() {
        return slots;
    }

    /** Returns the blocks that this one holds, and the names of each: one or more segments. */
    Map<BlockNode, List<List<String>>> below() {
        return below;
    }

    /** Notes a place in which this block holds another one. */
    void add(BlockNode child, BlockSlot slot, List<List<String>> names) {
        child.slots.add(slot);
        below.computeIfAbsent(child, key -> new ArrayList<>()).addAll(names);
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        String type = block.getClass().getSimpleName();
        String name = type.isEmpty() ? block.getClass().getName() : type;
        return (path.isEmpty() ? "the network" : path) + " (" + name + ")";
    }
}
