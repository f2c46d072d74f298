package io.djltp.plan;

import ai.djl.nn.AbstractBaseBlock;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.BlockList;

import io.djltp.internal.Errors;
import io.djltp.internal.parameters.BlockWalk;

import org.jspecify.annotations.Nullable;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * All blocks of a network with the places that hold them: children, fields, collections in fields,
 * and what a function has captured that a block has in a field, such as that of a LambdaBlock.
 */
final class BlockTree {

    private final Map<Block, Node> nodes = new IdentityHashMap<>();
    private final List<Node> order = new ArrayList<>();
    private final Set<Object> functions = Collections.newSetFromMap(new IdentityHashMap<>());
    private final Node root;

    /**
     * Walks a network.
     *
     * @param network the network
     */
    BlockTree(Block network) {
        root = node(network, "");
    }

    Node root() {
        return root;
    }

    /** Returns all blocks, each before those below it. */
    List<Node> nodes() {
        return order;
    }

    /** Returns the node of a block of the network. */
    Node nodeOf(Block block) {

        return Objects.requireNonNull(nodes.get(block), "a block of the network");
    }

    private Node node(Block block, String path) {
        Node known = nodes.get(block);
        if (known != null) {
            return known;
        }
        Node node = new Node(block, path);
        nodes.put(block, node);
        order.add(node);
        if (Styles.isParallel(block)) {
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

    private void visitChildren(Node parent) {
        BlockList own = parent.block instanceof AbstractBlock known ? childrenOf(known) : null;
        BlockList children = own == null ? parent.block.getChildren() : own;
        for (int i = 0; i < children.size(); i++) {
            String key = children.get(i).getKey();
            Block child = children.get(i).getValue();
            Slot slot =
                    own != null
                            ? elementSlot(own.values(), i, null)
                            : unreachable(
                                    parent.block.getClass().getName() + ".getChildren()",
                                    "which is no AbstractBlock of DJL: hold it in a field");
            String plain = key.replaceFirst("^\\d+(?=.)", "");
            String type = child.getClass().getSimpleName();
            link(parent, child, slot, List.of(List.of(key), List.of(plain), List.of(type)));
        }
    }

    /** Returns the list that a block keeps its children in, not the copy that it hands out. */
    static BlockList childrenOf(AbstractBlock block) {
        return PrivateFields.read(block, AbstractBlock.class, "children");
    }

    private void visitField(Node parent, Object owner, Field field, List<String> name) {
        if (Modifier.isStatic(field.getModifiers()) || field.getType().isPrimitive()) {
            return;
        }
        Object value = BlockWalk.valueOf(owner, field);
        if (value instanceof Block block) {
            String type = block.getClass().getSimpleName();
            link(parent, block, fieldSlot(owner, field), List.of(name, List.of(type)));
        } else if (value instanceof Function && functions.add(value)) {
            for (Field captured : value.getClass().getDeclaredFields()) {
                visitField(parent, value, captured, with(name, captured.getName()));
            }
        } else {
            visitElements(parent, value, field, name);
        }
    }

    private void visitElements(
            Node parent, @Nullable Object value, @Nullable Field field, List<String> name) {
        if (value instanceof Object[] array) {
            visitElements(parent, Arrays.asList(array), field, name); // a view
        } else if (value instanceof List<?> list) {
            for (int i = 0; i < list.size(); i++) {
                Slot slot = elementSlot(list, i, field);
                visitElement(parent, list.get(i), slot, with(name, "" + i));
            }
        } else if (value instanceof Map<?, ?> map) {
            map.forEach(
                    (key, each) ->
                            visitElement(
                                    parent,
                                    each,
                                    valueSlot(map, key, field),
                                    with(name, "" + key)));
        } else if (value instanceof Collection<?> all) {
            Slot slot =
                    unreachable(holder(value, field), "a collection without places: use a list");
            all.forEach(each -> visitElement(parent, each, slot, name));
        }
    }

    private void visitElement(Node parent, @Nullable Object element, Slot slot, List<String> name) {
        if (element instanceof Block block) {
            link(parent, block, slot, List.of(name));
        } else {
            visitElements(parent, element, null, name);
        }
    }

    private void link(Node parent, Block block, Slot slot, List<List<String>> names) {
        String name = String.join(".", names.get(0));
        Node child = node(block, parent.path.isEmpty() ? name : parent.path + "." + name);
        child.slots.add(slot);
        parent.below.computeIfAbsent(child, key -> new ArrayList<>()).addAll(names);
    }

    private static List<String> with(List<String> names, String name) {
        List<String> longer = new ArrayList<>(names);
        longer.add(name);
        return longer;
    }

    /** Returns a place that can only be read. */
    private static Slot unreachable(String where, String why) {
        return new Slot(
                type -> "it is held by " + where + ", " + why,
                block -> {
                    throw new IllegalStateException("It is held by " + where);
                });
    }

    /** Returns the place in a field of a block, or of a function that a block has. */
    private static Slot fieldSlot(Object owner, Field field) {
        return new Slot(
                type -> refusal(field, type), block -> PrivateFields.write(owner, field, block));
    }

    private static @Nullable String refusal(Field field, Class<? extends Block> type) {
        if (!field.getType().isAssignableFrom(type)) {
            return ("%s holds a %s and nothing else. Declare it as a Block, or leave the block"
                            + " whole")
                    .formatted(PrivateFields.describe(field), field.getType().getSimpleName());
        }
        Class<?> declaring = field.getDeclaringClass();
        boolean fixed = declaring.isHidden() || declaring.isRecord();
        if (fixed && Modifier.isFinal(field.getModifiers())) {
            String what = declaring.isRecord() ? "record" : "lambda";
            return ("%s belongs to a %s, whose fields Java does not let change. Hold the block in a"
                            + " field of a class, or leave it whole")
                    .formatted(PrivateFields.describe(field), what);
        }
        return null;
    }

    /** Returns what errors call a collection; {@code field} is null if it is in another one. */
    private static String holder(Object collection, @Nullable Field field) {
        return field == null ? collection.getClass().getName() : PrivateFields.describe(field);
    }

    /** Returns the place of an element of a list. */
    @SuppressWarnings("unchecked") // a refusal knows as much of the type as Java does
    private static Slot elementSlot(List<?> list, int index, @Nullable Field field) {
        Consumer<Object> setter = value -> ((List<Object>) list).set(index, value);
        String remedy = "a list that cannot be changed, in " + holder(list, field);
        return elementSlot(list.get(index), setter, field, remedy + ". Use an ArrayList");
    }

    /** Returns the place of a value of a map. */
    @SuppressWarnings("unchecked") // a refusal knows as much of the type as Java does
    private static Slot valueSlot(Map<?, ?> map, Object key, @Nullable Field field) {
        Consumer<Object> setter = value -> ((Map<Object, Object>) map).put(key, value);
        String remedy = "a map that cannot be changed, in " + holder(map, field);
        return elementSlot(map.get(key), setter, field, remedy + ". Use a LinkedHashMap");
    }

    private static Slot elementSlot(
            @Nullable Object element,
            Consumer<Object> setter,
            @Nullable Field field,
            String remedy) {
        return new Slot(
                type -> {
                    if (field != null
                            && field.getGenericType() instanceof ParameterizedType generic) {
                        Type[] arguments = generic.getActualTypeArguments();
                        Type last = arguments[arguments.length - 1];
                        if (last instanceof Class<?> known && !known.isAssignableFrom(type)) {
                            return ("%s holds elements of %s and nothing else. Declare them as"
                                            + " blocks, or leave the block whole")
                                    .formatted(
                                            PrivateFields.describe(field), known.getSimpleName());
                        }
                    }
                    try {
                        setter.accept(element); // to see whether the holder can be changed
                        return null;
                    } catch (UnsupportedOperationException e) {
                        return "it is in " + remedy + ", or leave the block whole";
                    }
                },
                setter::accept);
    }

    /** A block of a network, once, however many places hold it. */
    static final class Node {

        private final Block block;
        private final String path;
        private final List<Slot> slots = new ArrayList<>();
        private final Map<Node, List<List<String>>> below = new LinkedHashMap<>();

        private Node(Block block, String path) {
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

        /** Returns whether a single place holds the block. */
        boolean isHeldOnce() {
            return slots.size() == 1;
        }

        /** Returns the blocks that this one holds, and the names of each: one or more segments. */
        Map<Node, List<List<String>>> below() {
            return below;
        }

        /** Returns the blocks that this one holds, those that they hold, and so on. */
        Set<Node> allBelow() {
            Set<Node> all = new LinkedHashSet<>();
            List<Node> open = new ArrayList<>(below.keySet());
            while (!open.isEmpty()) {
                Node next = open.remove(open.size() - 1);
                if (next != this && all.add(next)) {
                    open.addAll(next.below.keySet());
                }
            }
            return all;
        }

        /**
         * Checks, without changing anything, that a block of another class can replace this one.
         *
         * @throws IllegalArgumentException if a place that holds it cannot hold the other
         */
        void check(Class<? extends Block> type) {
            for (Slot slot : slots) {
                String why = slot.refusal().apply(type);
                if (why != null) {
                    throw Errors.argument(
                            "The block %s cannot become a %s: %s", path, type.getSimpleName(), why);
                }
            }
        }

        /** Puts another block into all places that hold this one. */
        void replace(Block replacement) {
            slots.forEach(slot -> slot.setter().accept(replacement));
        }

        /** {@inheritDoc} */
        @Override
        public String toString() {
            String type = block.getClass().getSimpleName();
            String name = type.isEmpty() ? block.getClass().getName() : type;
            return (path.isEmpty() ? "the network" : path) + " (" + name + ")";
        }
    }

    /**
     * A place in a network that refers to a block: a child, a field, an element.
     *
     * @param refusal says why a block of a class cannot be put there, with a remedy, or null if it
     *     can
     * @param setter puts another block there
     */
    private record Slot(
            Function<Class<? extends Block>, @Nullable String> refusal, Consumer<Block> setter) {}
}
