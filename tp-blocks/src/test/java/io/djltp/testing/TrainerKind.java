package io.djltp.testing;

import ai.djl.Model;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;

import io.djltp.job.Job;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.LossScaling;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.DataProvider;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.stream.Stream;

/**
 * DJL's own trainer, or a parallel one.
 *
 * @param mode how the ranks share the work, or {@code null} for DJL's trainer or a mesh
 * @param ranks the number of ranks
 * @param mesh the mesh, or {@code null}
 * @param clipNorm the largest norm of all gradients together, or 0 for any
 * @param scaling how the loss is scaled, or {@code null}
 * @param sharding whether ranks share out the state of the optimizer
 * @param job the job of which this process is, or {@code null}
 */
public record TrainerKind(
        ParallelMode mode,
        int ranks,
        DeviceMesh mesh,
        float clipNorm,
        LossScaling scaling,
        boolean sharding,
        Job job) {

    /** DJL's own trainer. */
    public static final TrainerKind PLAIN = new TrainerKind(null, 1);

    /** Mode TENSOR with 1 rank. */
    public static final TrainerKind TENSOR_1 = new TrainerKind(ParallelMode.TENSOR, 1);

    /** Mode TENSOR with 2 ranks. */
    public static final TrainerKind TENSOR_2 = new TrainerKind(ParallelMode.TENSOR, 2);

    /** Mode TENSOR with 3 ranks. */
    public static final TrainerKind TENSOR_3 = new TrainerKind(ParallelMode.TENSOR, 3);

    /** Mode TENSOR with 4 ranks. */
    public static final TrainerKind TENSOR_4 = new TrainerKind(ParallelMode.TENSOR, 4);

    /** Mode DATA with 1 rank. */
    public static final TrainerKind DATA_1 = new TrainerKind(ParallelMode.DATA, 1);

    /** Mode DATA with 2 ranks. */
    public static final TrainerKind DATA_2 = new TrainerKind(ParallelMode.DATA, 2);

    /** Mode DATA with 3 ranks. */
    public static final TrainerKind DATA_3 = new TrainerKind(ParallelMode.DATA, 3);

    /** Mode DATA with 4 ranks. */
    public static final TrainerKind DATA_4 = new TrainerKind(ParallelMode.DATA, 4);

    /** Mode MIXED with 1 rank. */
    public static final TrainerKind MIXED_1 = new TrainerKind(ParallelMode.MIXED, 1);

    /** Mode MIXED with 2 ranks. */
    public static final TrainerKind MIXED_2 = new TrainerKind(ParallelMode.MIXED, 2);

    /** Mode MIXED with 3 ranks. */
    public static final TrainerKind MIXED_3 = new TrainerKind(ParallelMode.MIXED, 3);

    /** Mode MIXED with 4 ranks. */
    public static final TrainerKind MIXED_4 = new TrainerKind(ParallelMode.MIXED, 4);

    /** A mesh of 2 x 2 ranks. */
    public static final TrainerKind MESH_2X2 = mesh(2, 2);

    /** A mesh of 2 x 3 ranks. */
    public static final TrainerKind MESH_2X3 = mesh(2, 3);

    /** A mesh of 3 x 2 ranks. */
    public static final TrainerKind MESH_3X2 = mesh(3, 2);

    /**
     * Creates a trainer of a mode, or DJL's own.
     *
     * @param mode how the ranks share the work, or {@code null} for DJL's trainer
     * @param ranks the number of ranks
     */
    public TrainerKind(ParallelMode mode, int ranks) {
        this(mode, ranks, null, 0, null, false, null);
    }

    /**
     * Returns a parallel trainer with a mesh.
     *
     * @param data the number of ranks along the axis data
     * @param tensor the number of ranks along the axis tensor
     * @return the trainer
     */
    public static TrainerKind mesh(int data, int tensor) {
        return new TrainerKind(
                null,
                data * tensor,
                DeviceMesh.of(DeviceMesh.DATA, data, DeviceMesh.TENSOR, tensor),
                0,
                null,
                false,
                null);
    }

    /**
     * Returns this trainer with a limit of the norm of all gradients together.
     *
     * @param norm the limit
     * @return the trainer
     */
    public TrainerKind clippedTo(float norm) {
        return new TrainerKind(mode, ranks, mesh, norm, scaling, sharding, job);
    }

    /**
     * Returns this trainer with a scaled loss.
     *
     * @param settings how it is scaled
     * @return the trainer
     */
    public TrainerKind scaledBy(LossScaling settings) {
        return new TrainerKind(mode, ranks, mesh, clipNorm, settings, sharding, job);
    }

    /**
     * Returns this trainer, whose ranks share out the state of the optimizer.
     *
     * @return the trainer
     */
    public TrainerKind sharded() {
        return new TrainerKind(mode, ranks, mesh, clipNorm, scaling, true, job);
    }

    /**
     * Returns this trainer in one of several processes.
     *
     * @param other the job of which this process is
     * @return the trainer
     */
    public TrainerKind in(Job other) {
        return new TrainerKind(mode, ranks, mesh, clipNorm, scaling, sharding, other);
    }

    /**
     * Returns whether ranks train.
     *
     * @return whether it is not DJL's own trainer
     */
    public boolean isParallel() {
        return mode != null || mesh != null;
    }

    /**
     * Returns whether this trainer is tested over the backend of this run: any over threads, those
     * of two ranks and of meshes over others, whose collectives other tests hold at all sizes.
     *
     * @return whether it is
     */
    public boolean isOfBackend() {
        return System.getProperty("io.djltp.backend") == null || ranks == 2 || mesh != null;
    }

    /**
     * Returns the parallel trainers of all modes and 1 to 4 ranks, and one with a mesh.
     *
     * @return one row of a data provider for each
     */
    @DataProvider(name = "kinds")
    public static Object[][] parallel() {
        List<Object[]> kinds = new ArrayList<>(List.of(parallel(1, 2, 3, 4)));
        kinds.add(new Object[] {mesh(2, 2)});
        return kinds.toArray(new Object[0][]);
    }

    /**
     * Returns a parallel trainer of each mode with 2 ranks, and one with a mesh.
     *
     * @return one row of a data provider for each
     */
    @DataProvider(name = "eachMode")
    public static Object[][] eachMode() {
        return rows(TENSOR_2, DATA_2, MIXED_2, MESH_2X2);
    }

    /**
     * Returns the parallel trainers of all modes and 1 to 3 ranks.
     *
     * @return one row of a data provider for each
     */
    @DataProvider(name = "smallKinds")
    public static Object[][] small() {
        return parallel(1, 2, 3);
    }

    /**
     * Returns trainers as rows of a data provider.
     *
     * @param kinds the trainers
     * @return one row for each
     */
    public static Object[][] rows(TrainerKind... kinds) {
        return rows(List.of(kinds));
    }

    /**
     * Returns rows of a data provider.
     *
     * @param axes lists of arguments
     * @return one row for each combination
     */
    public static Object[][] rows(Collection<?>... axes) {
        return TestCases.product(Stream.of(axes).map(Collection::toArray).toArray(Object[][]::new));
    }

    /**
     * Returns the parallel trainers of all modes.
     *
     * @param sizes the numbers of ranks
     * @return the trainers
     */
    public static List<TrainerKind> all(int... sizes) {
        List<TrainerKind> kinds = new ArrayList<>();
        for (ParallelMode mode : ParallelMode.values()) {
            for (int ranks : sizes) {
                kinds.add(new TrainerKind(mode, ranks));
            }
        }
        return kinds;
    }

    /**
     * Returns the parallel trainers of all modes.
     *
     * @param sizes the numbers of ranks
     * @return one row of a data provider for each
     */
    public static Object[][] parallel(int... sizes) {
        return rows(all(sizes));
    }

    /**
     * Opens a trainer.
     *
     * @param model the model
     * @param config the training configuration
     * @return the trainer
     */
    public Trainer open(Model model, TrainingConfig config) {
        return isParallel()
                ? new ParallelTrainer(model, config, config())
                : model.newTrainer(config);
    }

    /**
     * Opens a trainer and initializes it.
     *
     * @param model the model
     * @param config the training configuration
     * @param input the shapes of a batch
     * @return the trainer
     */
    public Trainer open(Model model, TrainingConfig config, Shape... input) {
        Trainer trainer = open(model, config);
        try {
            trainer.initialize(input);
        } catch (RuntimeException e) {
            trainer.close();
            throw e;
        }
        return trainer;
    }

    /**
     * Returns the configuration of the ranks.
     *
     * @return the configuration, with the defaults but for the limit of the norm and the scale
     */
    public ParallelConfig config() {
        ParallelConfig.Builder config =
                ParallelConfig.builder().optShardOptimizer(sharding).optJob(job);
        if (mesh == null) {
            config.setMode(mode).setRanks(ranks);
        } else {
            config.setMesh(mesh);
        }
        if (scaling != null) {
            config.optLossScaling(scaling);
        }
        return (clipNorm > 0 ? config.optGradientClipNorm(clipNorm) : config).build();
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        String name =
                mesh != null ? mesh.toString() : mode == null ? "plain" : mode + " x " + ranks;
        return name + (sharding ? ", sharded" : "");
    }
}
