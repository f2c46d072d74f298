/**
 * What several tests use. Trainings on ranks are compared with DJL's own trainer by
 *
 * <ul>
 *   <li>{@link io.djltp.testing.BlockTraining} for a layer: output, every gradient, parameters
 *       after three steps, and the collective operations that it counts
 *   <li>{@link io.djltp.testing.Network} for a network: losses, outputs and parameters, or the
 *       exception that it throws
 *   <li>{@link io.djltp.testing.TrainingRun} for a loop of the test's own
 * </ul>
 *
 * <p>{@link io.djltp.testing.LayerPass} is one pass of a layer without a trainer. Networks are made
 * of {@link io.djltp.testing.Blocks}, the trainers are {@link io.djltp.testing.TrainerKind}.
 */
package io.djltp.testing;
