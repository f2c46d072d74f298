package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.mlp;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.table;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_3;

import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.checkpoint.StoppedRun.Source;
import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.RowParallelLinear;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.ParallelMode;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/**
 * Conformance case 25, its checkpoints: what ranks of one number save, ranks of another number,
 * mesh or mode restore and save again: no bit differs, of weights and of the optimizer's state.
 */
public class CheckpointsAtOtherSizesTest {

    private static final int WIDTH = 16;
    private static final Map<String, Task> TASKS = new LinkedHashMap<>();

    static {
        TASKS.put("gate and up", of(() -> gated(), adam()));
        TASKS.put("gate and up by rows", of(() -> gated(), rowwise()));
        TASKS.put("stacked q, k, v", of(() -> attention(8), adam()));
        TASKS.put("two query heads a key head", of(() -> attention(4), momentum()));
        TASKS.put("one key head, by rows", of(() -> attention(1), rowwise()));
        TASKS.put("stacked by hand", of(CheckpointsAtOtherSizesTest::stacked, rowwise()));
        TASKS.put("experts", of(CheckpointsAtOtherSizesTest::experts, adam()));
        for (int vocabulary : new int[] {17, 127, 31123}) {
            TASKS.put("vocabulary " + vocabulary, ofWords(vocabulary));
        }
    }

    private static Block gated() {
        ParallelMlp mlp = mlp(WIDTH, 37).optGated(true).build();
        return sequence(linear(WIDTH), tanh(), head(19), tanh(), row(true, WIDTH), mlp);
    }

    private static Block attention(int keyHeads) {
        return sequence(
                newColumn(WIDTH).optBatchShardedInput(true).optGatherOutput(true).build(),
                Blocks.attention(WIDTH, 8).optKeyValueHeads(keyHeads).build());
    }

    private static Block stacked() {
        return sequence(
                newColumn(48)
                        .optBatchShardedInput(true)
                        .optGatherOutput(true)
                        .optShardingStrategy(ShardingStrategy.stackedQkv(8, 2))
                        .build(),
                RowParallelLinear.builder().setUnits(WIDTH).optInputIsParallel(false).build());
    }

    private static Block experts() {
        return sequence(
                linear(WIDTH),
                MixtureOfExperts.builder().setExperts(9).setHiddenFeatures(6).build(),
                head(19),
                tanh(),
                row(true, WIDTH));
    }

    private static Task of(Supplier<Block> network, Supplier<Optimizer> optimizer) {
        Source rows = (manager, step) -> TrainingRun.random(manager, step, 9, 3, WIDTH);
        return new Task(network, Loss::l2Loss, optimizer, rows, rows);
    }

    private static Task ofWords(int vocabulary) {
        return new Task(
                () -> sequence(table(vocabulary, 2).build(), head(vocabulary)),
                VocabParallelCrossEntropyLoss::new,
                momentum(),
                (manager, step) ->
                        TrainingRun.labels(manager, step, 9, vocabulary)
                                .toType(DataType.INT64, false),
                (manager, step) -> TrainingRun.labels(manager, 50 + step, 9, vocabulary));
    }

    private static Supplier<Optimizer> adam() {
        return () -> Configs.adam(0.01f);
    }

    private static Supplier<Optimizer> momentum() {
        return () -> Configs.sgd(0.1f, 0.9f);
    }

    private static Supplier<Optimizer> rowwise() {
        return () -> RowwiseAdagrad.builder().optLearningRateTracker(Tracker.fixed(0.1f)).build();
    }

    @DataProvider
    public Object[][] tasks() {
        return TASKS.keySet().stream().map(name -> new Object[] {name}).toArray(Object[][]::new);
    }

    /** From 2 to 4, 1 and 8 ranks, to a mesh, to rows that are cut, shared out or not, and back. */
    @Test(dataProvider = "tasks", timeOut = 60_000)
    public void noBitDiffers(String name) {
        List<TrainerKind> kinds = new ArrayList<>();
        for (int ranks : new int[] {2, 4, 1, 8}) {
            kinds.add(new TrainerKind(ParallelMode.TENSOR, ranks));
        }
        kinds.add(DATA_2.sharded());
        kinds.add(new TrainerKind(ParallelMode.TENSOR, 8));
        kinds.add(MESH_2X2.sharded());
        kinds.add(DATA_2);
        kinds.add(MIXED_3.sharded());
        StoppedRun.inFolder(
                root -> {
                    Task task = TASKS.get(name);
                    StoppedRun.saved(kinds.get(0), task, List.of(2), root.resolve("0"));
                    for (int i = 1; i < kinds.size(); i++) {
                        Path before = root.resolve("" + (i - 1));
                        Path after = root.resolve("" + i);
                        StoppedRun.savedAgain(kinds.get(i), task, 2, before, after);
                        Checkpoints.assertSame(root.resolve("0"), after, 2, name + kinds.get(i));
                    }
                });
    }
}
