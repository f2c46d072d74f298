package io.djltp.nn.recompute;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_1;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;

import io.djltp.internal.rank.ParallelContext;
import io.djltp.nn.Recompute;
import io.djltp.testing.BlockTraining;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.function.Supplier;

/** Recomputed or kept: the same bits on any number of ranks, and what is communicated again. */
public class RecomputeTest extends RecordedTest {

    private static final List<TrainerKind> TENSOR =
            List.of(TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4, MESH_2X2);

    private static final List<TrainerKind> SOME = List.of(TENSOR_3, MESH_2X2);

    private static final List<TrainerKind> ALL =
            List.of(DATA_3, MIXED_1, MIXED_2, MIXED_4, MESH_2X2);

    private static Object[] network(
            String name,
            Function<Boolean, Block> network,
            Network.Batches batches,
            List<TrainerKind> kinds) {
        return new Object[] {name, network, batches, kinds};
    }

    @DataProvider
    public Object[][] networks() {
        Network.Batches decoder = RecomputedNetworks::decoderBatch;
        Network.Batches rows = Network.regression(5, 6, 3);
        return new Object[][] {
            network("layer", again -> RecomputedNetworks.decoder(again, false), decoder, TENSOR),
            network("core", again -> RecomputedNetworks.decoder(false, again), decoder, SOME),
            network(
                    "cut tokens",
                    RecomputedNetworks::sequenceParallel,
                    RecomputedNetworks.sequences(),
                    SOME),
            network("body and head", RecomputedNetworks::bodyAndHead, rows, ALL),
            network("slices", RecomputedNetworks::slices, rows, TENSOR),
        };
    }

    /** Micro-batches, their gradients clipped, by Adam: outputs and weights, bit for bit. */
    @Test(dataProvider = "networks", timeOut = 120_000)
    public void isTheSameBitForBit(
            String name,
            Function<Boolean, Block> network,
            Network.Batches batches,
            List<TrainerKind> kinds) {
        for (TrainerKind kind : kinds) {
            float clip = kind.ranks() % 2 == 0 ? 0.1f : 0;
            TrainingRun kept = run(kind.clippedTo(clip), network.apply(false), batches);
            TrainingRun again = run(kind.clippedTo(clip), network.apply(true), batches);
            again.assertBitEqual(kept, name + " on " + kind);
        }
    }

    /** Makes two steps of two micro-batches each, and notes all outputs. */
    static TrainingRun run(TrainerKind kind, Block block, Network.Batches batches) {
        return TrainingRun.of(
                kind,
                block,
                Configs.of(new HalfSquareLoss(), Configs.adam(0.01f)),
                batches.shapes(),
                (trainer, manager, numbers) -> {
                    for (int pass = 0; pass < 4; pass++) {
                        NDList[] batch = batches.make(manager, pass);
                        TrainingRun.backward(
                                trainer,
                                batch[0],
                                batch[1],
                                output -> TrainingRun.note(numbers, output.head()));
                        if (pass % 2 == 1) {
                            trainer.step();
                        }
                    }
                    NDList[] last = batches.make(manager, 0);
                    TrainingRun.note(numbers, trainer.evaluate(last[0]).head());
                });
    }

    /** So deep within each other, libtorch computes backward passes in other threads. */
    @Test(timeOut = 60_000)
    public void isTheSameInAThreadOfLibtorch() {
        Set<Thread> threads = ConcurrentHashMap.newKeySet();
        Block scaled =
                new LambdaBlock(
                        arrays -> {
                            threads.add(Thread.currentThread());
                            ParallelContext rank = ParallelContext.current();
                            int factor = rank == null ? 1 : rank.getTensorGroup().getSize();
                            return new NDList(arrays.head().mul(factor));
                        });
        Network.Batches rows = Network.regression(5, 6, 3);
        Function<Integer, Block> network =
                depth -> {
                    Block block = sequence(column(7), scaled);
                    for (int i = 0; i < depth; i++) {
                        block = new Recompute(block);
                    }
                    return sequence(block, row(3));
                };
        TrainingRun kept = run(TENSOR_3, network.apply(0), rows);
        TrainingRun again = run(TENSOR_3, network.apply(64), rows);
        threads.remove(Thread.currentThread());
        threads.removeIf(each -> each.getName().startsWith("tp-rank"));
        Assert.assertFalse(threads.isEmpty(), "libtorch used no thread of its own");
        again.assertBitEqual(kept);
    }

    @DataProvider
    public Object[][] traffic() {
        Network.Batches decoder = RecomputedNetworks::decoderBatch;
        Network.Batches sequences = RecomputedNetworks.sequences();
        Function<Boolean, Block> layer = again -> RecomputedNetworks.decoder(again, false);
        Function<Boolean, Block> core = again -> RecomputedNetworks.decoder(false, again);
        Function<Boolean, Block> tokens = RecomputedNetworks::sequenceParallel;
        return new Object[][] {
            {layer, decoder, "3 all-reduce", "4 all-reduce", "7 all-reduce"},
            {core, decoder, "3 all-reduce", "4 all-reduce", "4 all-reduce"},
            {
                tokens,
                sequences,
                "5 all-gather, 4 reduce-scatter",
                "5 all-gather, 4 reduce-scatter",
                "9 all-gather, 8 reduce-scatter"
            },
        };
    }

    /** What a recomputed part communicates forward comes in the backward pass once more. */
    @Test(dataProvider = "traffic", timeOut = 60_000)
    public void whatIsCommunicatedAgain(
            Function<Boolean, Block> network,
            Network.Batches batches,
            String forward,
            String backward,
            String recomputed) {
        assertCounts(() -> network.apply(false), batches, forward, backward);
        assertCounts(() -> network.apply(true), batches, forward, recomputed);
    }

    private static void assertCounts(
            Supplier<Block> block, Network.Batches batches, String forward, String backward) {
        new BlockTraining(block, batches, null).assertCounts(TENSOR_3, forward, backward);
    }

    /** A file has no trace of recomputation: either network loads what the other has saved. */
    @Test(timeOut = 60_000)
    public void isSavedAsTheBlock() throws IOException, MalformedModelException {
        byte[] saved = save(initialized(RecomputedNetworks.slices(true), manager));
        Block plain = initialized(RecomputedNetworks.slices(false), manager);
        plain.loadParameters(manager, new DataInputStream(new ByteArrayInputStream(saved)));
        byte[] again = save(plain);
        Assert.assertEquals(again, saved);
        Block recomputed = initialized(RecomputedNetworks.slices(true), manager);
        recomputed.loadParameters(manager, new DataInputStream(new ByteArrayInputStream(again)));
        Assert.assertEquals(save(recomputed), saved);
    }

    private static Block initialized(Block block, NDManager manager) {
        block.initialize(manager, DataType.FLOAT32, new Shape(5, 6));
        return block;
    }

    private static byte[] save(Block block) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        block.saveParameters(new DataOutputStream(bytes));
        return bytes.toByteArray();
    }
}
