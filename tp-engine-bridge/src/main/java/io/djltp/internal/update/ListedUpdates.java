package io.djltp.internal.update;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.FlushDenormals;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * Updates many weights. Those of one type and device that one operator of PyTorch updates, with the
 * same numbers, are updated by one call of it; the result is that of a call for each, bit for bit.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ListedUpdates {

    /**
     * The operators divide each weight among the threads, one weight after another: threads that
     * meet after fewer elements take longer than one thread alone.
     */
    private static final long ELEMENTS_OF_THREADS = 1 << 15;

    private final List<Item> items = new ArrayList<>();

    /** Creates a list without weights. */
    public ListedUpdates() {}

    /**
     * A weight, or a range of its elements.
     *
     * @param update its update, begun
     * @param weight the weight
     * @param gradient the gradient of what is updated, or {@code null} if it is zero
     * @param range the elements that are updated, or {@code null}: all
     */
    private record Item(
            WeightUpdate update,
            NDArray weight,
            @Nullable TensorView gradient,
            @Nullable ShardRange range) {

        /** Returns whether nothing is to be done. */
        boolean isDone() {
            return elements() == 0 || gradient == null && update.ignoresZeroGradient();
        }

        /** Returns the operator that is all of the update, or null if there is more to do. */
        WeightUpdate.@Nullable Fused rule() {
            return gradient == null || update.isInGroups()
                    ? null
                    : update.onlyFused(weight.getDataType(), weight.getDevice().isGpu());
        }

        long elements() {
            return range == null ? weight.size() : range.length();
        }

        long address() {
            return TensorView.of(weight).address();
        }

        void run() {
            Tensor values = WeightUpdate.elements(TensorView.of(weight).tensor(), range);
            Tensor given = gradient == null ? null : gradient.tensor();
            new DenseUpdate(values, given, update).run();
        }
    }

    /** Weights that one call updates have the same. */
    private record Kind(WeightUpdate.Fused rule, DataType type, Device device) {}

    /**
     * Adds a weight.
     *
     * @param update its update, begun
     * @param weight the weight, contiguous
     * @param gradient the gradient of what is updated, whose elements may be others afterwards, or
     *     {@code null} if it is zero everywhere; to be there until {@link #run}
     * @param range which of the weight's elements are updated, or {@code null}: all of them. The
     *     state of the update is that of these
     */
    public void add(
            WeightUpdate update,
            NDArray weight,
            @Nullable TensorView gradient,
            @Nullable ShardRange range) {
        items.add(new Item(update, weight, gradient, range));
    }

    /**
     * Updates what was added, and forgets it.
     *
     * @return how many calls that were, of an operator for several weights or of a rule for one
     */
    public int run() {
        if (items.isEmpty()) {
            return 0;
        }
        int calls = 0;
        Map<Kind, List<Item>> listed = new LinkedHashMap<>();
        try (TorchScope scope = TorchScope.withoutGraph();
                FlushDenormals denormals = new FlushDenormals()) {
            for (Item item : items) {
                WeightUpdate.Fused rule = item.isDone() ? null : item.rule();
                if (rule != null) {
                    NDArray weight = item.weight();
                    Kind kind = new Kind(rule, weight.getDataType(), weight.getDevice());
                    listed.computeIfAbsent(kind, key -> new ArrayList<>()).add(item);
                } else if (!item.isDone()) {
                    item.run();
                    calls++;
                }
            }
            listed.forEach((kind, all) -> run(kind.rule(), all));
        } finally {
            items.clear();
        }
        return calls + listed.size();
    }

    private static void run(WeightUpdate.Fused rule, List<Item> all) {
        if (all.size() == 1) {
            all.get(0).run(); // a rule may know a shorter way
            return;
        }
        Kept kept = all.get(0).update().kept;
        if (kept == null || !kept.isOf(all)) {
            kept = new Kept(rule, all);
        }
        int threads = isSmall(all) ? Autograd.getThreads() : 1;
        if (threads > 1) {
            Autograd.setThreads(1);
        }
        try {
            for (Item item : all) {
                Tensor given = Objects.requireNonNull(item.gradient()).tensor();
                kept.lists.add(1, given.is_contiguous() ? given : given.contiguous());
            }
            rule.operator().call(rule.step(), rule.numbers(), kept.lists);
        } finally {
            kept.lists.clear(1);
            if (threads > 1) {
                Autograd.setThreads(threads);
            }
        }
    }

    private static boolean isSmall(List<Item> all) {
        return all.stream().mapToLong(Item::elements).sum() < ELEMENTS_OF_THREADS * all.size();
    }

    /** The weights that one call updates, with what it takes of them from step to step. */
    static final class Kept implements AutoCloseable {

        private final List<Item> items = new ArrayList<>(); // without gradients
        private final List<Long> memory = new ArrayList<>(); // where each weight is
        private final FusedOperator.Lists lists;

        Kept(WeightUpdate.Fused rule, List<Item> all) {
            lists = new FusedOperator.Lists(rule.operator()).keep();
            for (Item item : all) {
                WeightUpdate update = item.update();
                if (update.kept != null) {
                    update.kept.close();
                }
                update.kept = this;
                items.add(new Item(update, item.weight(), null, item.range()));
                memory.add(item.address());
                Tensor weight = TensorView.of(item.weight()).tensor();
                Tensor values = WeightUpdate.elements(weight, item.range());
                update.prepare(values);
                lists.add(0, values);
                for (int i = 0; i < rule.states().size(); i++) {
                    lists.add(2 + i, update.state(rule.states().get(i)).view_as(values));
                }
            }
        }

        /** Returns whether nothing has changed. (Arrays are equal if their elements are.) */
        private boolean isOf(List<Item> others) {
            boolean same = items.size() == others.size();
            for (int i = 0; same && i < items.size(); i++) {
                Item one = items.get(i);
                Item other = others.get(i);
                same = one.update == other.update && one.weight == other.weight;
                same = same && Objects.equals(one.range, other.range);
                same = same && memory.get(i) == other.address();
            }
            return same;
        }

        /** Frees the lists: one of the weights is updated with others, or its state is freed. */
        @Override
        public void close() {
            if (!items.isEmpty()) {
                items.clear();
                lists.close();
            }
        }
    }
}
