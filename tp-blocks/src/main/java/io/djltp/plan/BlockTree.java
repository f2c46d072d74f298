package io.djltp.plan;

import ai.djl.nn.AbstractBaseBlock;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.BlockList;
import ai.djl.util.Pair;

import io.djltp.parameters.BlockWalk;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;

/**
 * All blocks of a network with the places that hold them: children, fields, collections in fields,
 * and what a function has captured that a block has in a field, such as that of a LambdaBlock.
 */
final class BlockTree {

    private final Map<Block, BlockNode> nodes = new IdentityHashMap<>();
    private final List<BlockNode> order = new ArrayList<>();
    private final Set<Object> functions = Collections.newSetFromMap(new IdentityHashMap<>());
    private final BlockNode root;

    /**
     * Walks a network.
     *
     * @param network the network
     */
    BlockTree(Block network) {
        root = node(network, "");
    }

    BlockNode root() {
        return root;
    }

    /** Returns all blocks, each before those below it. */
    List<BlockNode> nodes() {
        return order;
    }

    /** Returns the node of a block of the network. */
    BlockNode nodeOf(Block block) {
        return nodes.get(block);
    }

    private BlockNode node(Block block, String path) {
        BlockNode known = nodes.get(block);
        if (known != null) {
            return known;
        }
        BlockNode node = new BlockNode(block, path);
        nodes.put(block, node);
        order.add(node);
        if (PlainBlocks.isParallel(block)) {
            return node; // what is in it is its own affair
        }
        visitChildren(node);
        for (Class<?> type = block.getClass(); isSearched(type); type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                visitField(node, block, field, List.of(field.getName()));
            }
        }
        return node;
    }

    /** What DJL's base classes have in fields are the children. */
    private static boolean isSearched(Class<?> type) {
        return type != null && type != AbstractBlock.class && type != AbstractBaseBlock.class;
    }

    private void visitChildren(BlockNode parent) {
        BlockList children = childrenOf(parent.block());
        boolean own = children != null;
        children = own ? children : parent.block().getChildren();
        for (int i = 0; i < children.size(); i++) {
            Pair<String, Block> child = children.get(i);
            BlockSlot slot =
                    own
                            ? new ListSlot<>(children.values(), i, null)
                            : new BlockSlot.Unreachable(
                                    parent.block().getClass().getName() + ".getChildren()",
                                    "which is no AbstractBlock of DJL: hold it in a field");
            String key = child.getKey();
            link(
                    parent,
                    child.getValue(),
                    slot,
                    List.of(
                            List.of(key),
                            List.of(key.replaceFirst("^\\d+(?=.)", "")),
                            List.of(child.getValue().getClass().getSimpleName())));
        }
    }

    /** Returns the list that a block keeps its children in, not the copy that it hands out. */
    static BlockList childrenOf(Block block) {
        return block instanceof AbstractBlock
                ? (BlockList) BlockState.read(block, AbstractBlock.class, "children")
                : null;
    }

    private void visitField(BlockNode parent, Object owner, Field field, List<String> name) {
        if (Modifier.isStatic(field.getModifiers()) || field.getType().isPrimitive()) {
            return;
        }
        Object value = BlockWalk.valueOf(owner, field);
        if (value instanceof Block) {
            Block block = (Block) value;
            String type = block.getClass().getSimpleName();
            link(parent, block, new FieldSlot(owner, field), List.of(name, List.of(type)));
        } else if (value instanceof Function && functions.add(value)) {
            for (Field captured : value.getClass().getDeclaredFields()) {
                visitField(parent, value, captured, with(name, captured.getName()));
            }
        } else if (value != null) {
            visitElements(parent, value, field, name);
        }
    }

    private void visitElements(BlockNode parent, Object value, Field field, List<String> name) {
        if (value instanceof Object[]) {
            value = Arrays.asList((Object[]) value); // a view
        }
        if (value instanceof List) {
            List<?> list = (List<?>) value;
            for (int i = 0; i < list.size(); i++) {
                ListSlot<?> slot = new ListSlot<>(list, i, field);
                visitElement(parent, list.get(i), slot, field, with(name, "" + i));
            }
        } else if (value instanceof Map) {
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                MapSlot slot = new MapSlot((Map<?, ?>) value, entry.getKey(), field);
                visitElement(
                        parent, entry.getValue(), slot, field, with(name, "" + entry.getKey()));
            }
        } else if (value instanceof Collection) {
            BlockSlot slot =
                    new BlockSlot.Unreachable(
                            FieldSlot.describe(field), "a collection without places: use a list");
            ((Collection<?>) value).forEach(e -> visitElement(parent, e, slot, field, name));
        }
    }

    private void visitElement(
            BlockNode parent, Object element, BlockSlot slot, Field field, List<String> name) {
        if (element instanceof Block) {
            link(parent, (Block) element, slot, List.of(name));
        } else if (element instanceof Collection
                || element instanceof Map
                || element instanceof Object[]) {
            visitElements(parent, element, null, name);
        }
    }

    private void link(BlockNode parent, Block block, BlockSlot slot, List<List<String>> names) {
        String name = String.join(".", names.get(0));
        BlockNode child = node(block, parent.path().isEmpty() ? name : parent.path() + "." + name);
        parent.add(child, slot, names);
    }

    private static List<String> with(List<String> names, String name) {
        List<String> longer = new ArrayList<>(names);
        longer.add(name);
        return longer;
    }
}
