package io.djltp.internal.rank;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertSame;
import static org.testng.Assert.assertThrows;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.collective.Collective;
import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;

import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;

/** The groups of a mesh, on every backend. */
public class MeshGroupsTest {

    private static final DeviceMesh MESH = DeviceMesh.of("data", 2, "tensor", 3);

    private static ParallelConfig.Builder config() {
        return ParallelConfig.builder().setMesh(MESH).optTimeout(Duration.ofSeconds(20));
    }

    @Test(timeOut = 60_000)
    public void eachAxisHasItsGroups() {
        try (RankPool pool = new RankPool(config().build())) {
            List<float[]> sums =
                    pool.run(
                            context -> {
                                Communicator data = context.getGroup("data");
                                Communicator tensor = context.getGroup("tensor");
                                assertSame(context.getDataGroup(), data);
                                assertSame(context.getTensorGroup(), tensor);
                                assertEquals(data.getSize(), 2);
                                assertEquals(data.getRank(), context.getRank() / 3);
                                assertEquals(tensor.getSize(), 3);
                                assertEquals(tensor.getRank(), context.getRank() % 3);
                                return new float[] {
                                    sum(context, data),
                                    sum(context, tensor),
                                    sum(context, context.getWorld())
                                };
                            });
            for (int rank = 0; rank < 6; rank++) {
                float neighbours = rank < 3 ? 0 + 1 + 2 : 3 + 4 + 5;
                float[] expected = {rank % 3 + rank % 3 + 3, neighbours, 15};
                assertEquals(sums.get(rank), expected);
            }
            assertEquals(
                    pool.getContext(0).getCounts().get(Collective.ALL_REDUCE), 3, "of all groups");
        }
    }

    private static float sum(ParallelContext context, Communicator group) {
        try (NDManager manager = NDManager.newBaseManager();
                NDArray number = manager.create(new float[] {context.getRank()})) {
            group.allReduce(number, ReduceOp.SUM);
            return number.getFloat(0);
        }
    }

    @Test(timeOut = 60_000)
    public void anAxisOfOneRankOrOfAllNeedsNoPart() {
        DeviceMesh[] meshes = {
            DeviceMesh.of("data", 1, "tensor", 3), DeviceMesh.builder().addAxis("tensor", 3).build()
        };
        for (DeviceMesh mesh : meshes) {
            try (RankPool pool = new RankPool(ParallelConfig.builder().setMesh(mesh).build())) {
                pool.run(
                        context -> {
                            assertSame(context.getTensorGroup(), context.getWorld());
                            assertEquals(context.getDataGroup().getSize(), 1);
                            assertEquals(context.getCounts().get(Collective.SPLIT), 0);
                            assertThrows(
                                    IllegalArgumentException.class,
                                    () -> context.getGroup("pipeline"));
                            return null;
                        });
            }
        }
    }

    /** Ranks of other groups than that of the one that fails end too. */
    @Test(timeOut = 60_000)
    public void aFailureEndsAllGroups() {
        try (RankPool pool = new RankPool(config().build())) {
            IllegalStateException thrown = new IllegalStateException("first");
            long begin = System.nanoTime();
            RankFailedException e =
                    expectThrows(
                            RankFailedException.class,
                            () ->
                                    pool.run(
                                            context -> {
                                                if (context.getRank() == 4) {
                                                    throw thrown;
                                                }
                                                while (true) {
                                                    sum(context, context.getTensorGroup());
                                                    sum(context, context.getDataGroup());
                                                }
                                            }));
            assertEquals(e.getRank(), 4);
            assertSame(e.getCause(), thrown);
            assertTrue(System.nanoTime() - begin < Duration.ofSeconds(15).toNanos());
        }
    }
}
