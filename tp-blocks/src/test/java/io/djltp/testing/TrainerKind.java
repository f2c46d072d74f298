package io.djltp.testing;

import ai.djl.Model;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.LossScaling;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.DataProvider;

import java.util.ArrayList;
import java.util.List;

/**
 * DJL's own trainer, or a parallel one.
 *
 * @param mode how the ranks share the work, or {@code null} for DJL's trainer or a mesh
 * @param ranks the number of ranks
 * @param mesh the mesh, or {@code null}
 * @param clipNorm the largest norm of all gradients together, or 0 for any
 * @param scaling how the loss is scaled, or {@code null}
 */
public record TrainerKind(
        ParallelMode mode, int ranks, DeviceMesh mesh, float clipNorm, LossScaling scaling) {

    /** DJL's own trainer. */
    public static final TrainerKind PLAIN = new TrainerKind(null, 1);

    /**
     * Creates a trainer of a mode, or DJL's own.
     *
     * @param mode how the ranks share the work, or {@code null} for DJL's trainer
     * @param ranks the number of ranks
     */
    public TrainerKind(ParallelMode mode, int ranks) {
        this(mode, ranks, null, 0, null);
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
                null);
    }

    /**
     * Returns this trainer with a limit of the norm of all gradients together.
     *
     * @param norm the limit
     * @return the trainer
     */
    public TrainerKind clippedTo(float norm) {
        return new TrainerKind(mode, ranks, mesh, norm, scaling);
    }

    /**
     * Returns this trainer with a scaled loss.
     *
     * @param settings how it is scaled
     * @return the trainer
     */
    public TrainerKind scaledBy(LossScaling settings) {
        return new TrainerKind(mode, ranks, mesh, clipNorm, settings);
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
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 2)},
            {new TrainerKind(ParallelMode.DATA, 2)},
            {new TrainerKind(ParallelMode.MIXED, 2)},
            {mesh(2, 2)}
        };
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
     * Returns the parallel trainers of all modes.
     *
     * @param sizes the numbers of ranks
     * @return one row of a data provider for each
     */
    public static Object[][] parallel(int... sizes) {
        List<Object[]> kinds = new ArrayList<>();
        for (ParallelMode mode : ParallelMode.values()) {
            for (int ranks : sizes) {
                kinds.add(new Object[] {new TrainerKind(mode, ranks)});
            }
        }
        return kinds.toArray(new Object[0][]);
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
     * Returns the configuration of the ranks.
     *
     * @return the configuration, with the defaults but for the limit of the norm and the scale
     */
    public ParallelConfig config() {
        ParallelConfig.Builder config = ParallelConfig.builder();
        if (mesh == null) {
            config.setMode(mode).setRanks(ranks);
        } else {
            config.setMesh(mesh);
        }
        config.optLossScaling(scaling);
        return (clipNorm > 0 ? config.optGradientClipNorm(clipNorm) : config).build();
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return mesh != null ? mesh.toString() : mode == null ? "plain" : mode + " x " + ranks;
    }
}
