package io.djltp.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.torch.TensorView;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;

/** The groups of a mesh of two axes are used by turns, and end together. */
public class MeshGroupsTest {

    private static final Duration LONG = Duration.ofMinutes(10);

    private static List<Communicator> group(int size, Duration timeout) {
        return TestBackend.current().create(size, timeout);
    }

    /** Returns the sizes of the axes, data and tensor. */
    @DataProvider
    public static Object[][] meshes() {
        return new Object[][] {{2, 2}, {2, 3}, {3, 2}, {1, 4}, {4, 1}};
    }

    @Test(dataProvider = "meshes", timeOut = 60_000)
    public void bothAxesComputeByTurns(int data, int tensor) throws Exception {
        RankThreads.run(
                data * tensor,
                (world, manager) -> {
                    try (MeshGroups mesh = new MeshGroups(world, data, tensor)) {
                        mesh.run(40);
                    }
                    world.barrier();
                });
    }

    /** Whoever shares a group with the rank that fails, or shares none with it. */
    @Test(timeOut = 60_000)
    public void aFailureEndsTheGroupsOfAllAxes() throws Exception {
        List<String> before = Leftovers.list();
        List<Communicator> group = group(6, LONG);
        IllegalStateException cause = new IllegalStateException("rank 5 has lost its data");
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (world, manager) -> {
                            MeshGroups mesh = new MeshGroups(world, 2, 3);
                            mesh.run(3);
                            if (world.getRank() == 5) {
                                world.abort(cause);
                                throw cause;
                            }
                            while (true) {
                                mesh.run(1);
                            }
                        });
        for (int rank = 0; rank < 5; rank++) {
            Throwable outcome = outcomes[rank];
            Assert.assertTrue(outcome instanceof CollectiveException, "" + outcome);
            Assert.assertTrue(
                    outcome.getMessage().startsWith("rank " + rank + " of 6: "), "" + outcome);
            // without a job, sockets tell no more than that they were closed
            if (TestBackend.current() != TestBackend.TCP) {
                Assert.assertSame(outcome.getCause(), cause, "" + outcome);
            }
        }
        group.forEach(Communicator::close); // the groups of the axes go with that of all ranks
        Leftovers.assertNoneSince(before);
    }

    /** By its number among all ranks: that in the group of an axis is not known to the user. */
    @Test(timeOut = 60_000)
    public void theRankThatDoesNotComeIsNamed() throws Exception {
        List<Communicator> group = group(6, Duration.ofSeconds(2));
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (world, manager) -> {
                            MeshGroups mesh = new MeshGroups(world, 2, 3);
                            mesh.run(2);
                            if (world.getRank() == 2) {
                                mesh.data().allReduce(manager.ones(new Shape(6)), ReduceOp.SUM);
                            }
                        });
        String message = "" + outcomes[2].getMessage();
        Assert.assertTrue(
                message.startsWith(
                        "rank 2 of 6: time-out after 2000 ms: rank 2 waits in all-reduce"),
                message);
        Refusals.assertContains(message, " in part 2 of split #2 (axis data) for ", "rank 5");
        group.forEach(Communicator::close);
    }

    /** An abort of one axis at any moment is one of all groups of the ranks. */
    @Test(timeOut = 60_000)
    public void anAbortOfOneAxisLeavesNothingBehind() throws Exception {
        List<String> before = Leftovers.list();
        for (int i = 0; i < 10; i++) {
            long delay = 3 * i;
            List<Communicator> group = group(4, LONG);
            RankThreads.failures(
                    group,
                    (world, manager) -> {
                        MeshGroups mesh = new MeshGroups(world, 2, 2);
                        if (world.getRank() == 2) {
                            Thread.sleep(delay);
                            mesh.data().abort(new IllegalStateException("enough"));
                        }
                        while (true) {
                            mesh.run(1);
                        }
                    });
            group.forEach(Communicator::close);
        }
        Leftovers.assertNoneSince(before);
    }

    /** What is under way when a group is closed is carried out. */
    @Test(timeOut = 60_000)
    public void aGroupIsClosedWhileItsOperationsAreUnderWay() throws Exception {
        RankThreads.run(
                4,
                (world, manager) -> {
                    for (int i = 0; i < 20; i++) {
                        NDArray sum = manager.ones(new Shape(100_000));
                        NDArray late = manager.ones(new Shape(100_000));
                        Communicator row = world.split(world.getRank() / 2, 0);
                        row.allReduce(sum, ReduceOp.SUM);
                        Work work = row.allReduce(TensorView.of(late), ReduceOp.SUM);
                        row.close();
                        work.await();
                        Assert.assertEquals(late.sum().getFloat(), 200_000f);
                        Assert.assertEquals(sum.sum().getFloat(), 200_000f);
                    }
                });
    }

    /** Groups of the same ranks are different groups: what they call is never mixed up. */
    @Test(timeOut = 60_000)
    public void groupsOfTheSameRanksAreToldApart() throws Exception {
        if (TestBackend.current() == TestBackend.NCCL) {
            throw new SkipException("NCCL does not compare what the ranks call");
        }
        List<Communicator> group = group(2, Duration.ofSeconds(2));
        for (CollectiveException failure :
                RankThreads.failures(
                        group,
                        (world, manager) -> {
                            Communicator first = world.split(0, 0);
                            Communicator second = world.split(0, 0);
                            Communicator mine = world.getRank() == 0 ? first : second;
                            TensorView in = TensorView.of(manager.ones(new Shape(3)));
                            TensorView out = TensorView.of(manager.ones(new Shape(6)));
                            mine.allGather(in, out, new long[] {3, 3}).await();
                        })) {
            String message = failure.getMessage();
            Assert.assertTrue(message.matches("(?s).*part 0 of split #[12].*"), message);
        }
        group.forEach(Communicator::close);
    }
}
