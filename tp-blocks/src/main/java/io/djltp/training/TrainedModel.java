package io.djltp.training;

import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.util.Preconditions;
import ai.djl.util.Utils;

import io.djltp.internal.Errors;
import io.djltp.internal.files.SideFolder;
import io.djltp.internal.parameters.DjlFormat;
import io.djltp.internal.parameters.DriftCheck;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.RunningBuffers;
import io.djltp.internal.rank.RankPool;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** A model while ranks train it: how it gets its weights back to be saved, and at the end. */
@SuppressWarnings("try") // a call is begun by being open, and the end comes with its close
final class TrainedModel {

    private static final Logger logger = LoggerFactory.getLogger(TrainedModel.class);

    private static final String JOB_FAILED = "with the processes of a job that failed";

    private final Model model;
    private final Block block;
    private final NDManager manager;
    private final ParallelConfig config;
    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final DriftCheck driftCheck;
    private final RunningBuffers buffers;
    private final TrainingSteps steps;
    private final List<Runnable> beforeChange = new ArrayList<>();
    private final Model savedModel;
    private boolean initialized;
    private boolean closed;
    private boolean dropped;

    /**
     * Takes over a model.
     *
     * @param model the model
     * @param manager the manager of the trainer, which is closed with the model
     * @param config the ranks
     * @param ranks the ranks of this process
     * @param parameters what they hold
     * @param driftCheck compares their replicas
     * @param steps their steps
     */
    TrainedModel(
            Model model,
            NDManager manager,
            ParallelConfig config,
            RankPool ranks,
            ParallelParameters parameters,
            DriftCheck driftCheck,
            TrainingSteps steps) {
        this.model = model;
        this.manager = manager;
        this.config = config;
        this.ranks = ranks;
        this.parameters = parameters;
        this.driftCheck = driftCheck;
        this.steps = steps;
        block = model.getBlock();
        buffers = new RunningBuffers(ranks, parameters);
        savedModel = AtomicSave.savedBy(model, this::save);
        parameters.setSaving(this::beforeSave);
    }

    /** Notes that the ranks have their parts. All processes call it. */
    void begin() {
        initialized = true;
    }

    /** Lets the weights be lost with the ranks: they are in a file. */
    void drop() {
        dropped = true;
    }

    boolean isInitialized() {
        return initialized;
    }

    boolean isClosed() {
        return closed;
    }

    /** Returns the model as listeners get it, whose {@code save} is {@link #save}. */
    Model asSaved() {
        return savedModel;
    }

    /**
     * Checks that the model is there with the block that the ranks train.
     *
     * @throws IllegalStateException if it was closed before the trainer, or has another block
     */
    void checkOpen() {
        Errors.checkState(
                closed || manager.isOpen(),
                "The model %s was closed while its ParallelTrainer was open, and with it the"
                        + " weights of the ranks: close the trainer before the model",
                model.getName());
        Errors.checkState(
                closed || model.getBlock() == block,
                "The model %s was given another block while its ParallelTrainer was open, whose"
                        + " ranks have the weights of the first: close the trainer, and make a new"
                        + " one after model.setBlock(...)",
                model.getName());
    }

    /** Begins a forward pass: in training blocks change their buffers, else they use them. */
    void beginForward(boolean training) {
        if (training) {
            buffers.change();
        } else {
            buffers.equalize();
        }
    }

    /** Adds what is done before weights are changed, moved or freed. */
    void addBeforeChange(Runnable waiting) {
        beforeChange.add(waiting);
    }

    /** Begins to change the weights. */
    void beginChange() {
        beforeChange.forEach(Runnable::run);
    }

    /** Notes that the weights have been changed. */
    void endStep() {
        buffers.equalizeAfterStep();
    }

    /**
     * Gives all ranks the buffers of rank 0 that blocks change in forward passes. All processes
     * call it.
     */
    void equalizeBuffers() {
        buffers.equalize();
    }

    /**
     * Replaces the weights by others.
     *
     * @param step the number of steps that these come from
     * @param change what replaces them
     */
    void replace(long step, Runnable change) {
        beginChange();
        change.run();
        steps.setCount(step);
        driftCheck.restart(step);
    }

    /**
     * Saves the model as it is after the last step, see {@link ParallelTrainer#save}. All processes
     * call it.
     *
     * @param folder the folder
     * @param name the name of the model, or {@code null} for its own
     * @throws IOException if the file cannot be written
     */
    void save(Path folder, @Nullable String name) throws IOException {
        boolean first = config.getJob() == null || config.getJob().getProcess() == 0;
        try (TrainingSteps.OneCaller.Call call = steps.begin("save")) {
            checkOpen();
            if (!closed && initialized) {
                beforeSave();
            }
            DjlFormat.check(model.getBlock());
            if (first || !closed && !parameters.getCut().isEmpty()) {
                parameters.save(first, () -> AtomicSave.save(model, folder, name));
            }
        }
    }

    /** What is saved must be the weights after one step, and the same on all ranks. */
    private void beforeSave() {
        try (TrainingSteps.OneCaller.Call call = steps.begin("save")) {
            checkOpen();
            checkSaved();
        }
    }

    private void checkSaved() {
        parameters.showReplicas();
        Errors.checkState(
                !ranks.isDistributed() || parameters.getCut().isEmpty() || !steps.isOpen(),
                "While ranks of several processes train the model, it can be saved between two"
                        + " steps only, when all of them have the weights of the same step: save it"
                        + " after step(), and not between forward(...) and step()");
        long step = steps.count();
        if (config.isDriftChecked() && driftCheck.isDue(step) && !ranks.isOver()) {
            driftCheck.runBeforeSave(step);
        }
    }

    /** Puts the trained weights into the model, and ends the ranks. */
    void close() {
        closed = true;
        beforeChange.forEach(Runnable::run);
        boolean handedBack = ranks.isDistributed();
        long step = steps.count();
        boolean checked = config.isDriftChecked() && driftCheck.isDue(step);
        try (TrainingSteps.OneCaller.Call end = () -> end(handedBack)) {
            long[] checksums = null;
            if (handedBack) {
                if (checked && manager.isOpen() && !ranks.isOver()) {
                    checksums = driftCheck.allChecksums(); // while the ranks have their shards
                }
                handBackDistributed();
            }
            // afterwards: weights that have drifted apart are not lost
            if (checked && !ranks.isOver()) {
                if (checksums == null) {
                    driftCheck.run(step);
                } else {
                    driftCheck.check(step, checksums);
                }
            }
        }
    }

    /** The shards of other processes can be had only while the ranks run. */
    private void handBackDistributed() {
        if (!manager.isOpen()) {
            loseWithModel();
            return;
        }
        if (ranks.isOver()) {
            if (initialized) {
                logger.error(
                        "The job has failed: the shards of other processes are lost, so the model"
                                + " '{}' does not have its weights",
                        model.getName());
            }
            parameters.lose(JOB_FAILED);
            return;
        }
        try {
            buffers.equalize();
            parameters.handBack();
        } catch (RuntimeException e) {
            parameters.lose(JOB_FAILED);
            throw e;
        }
    }

    private void end(boolean handedBack) {
        ranks.close();
        if (!ranks.isStopped()) {
            // a rank is still computing: what it uses must not be freed under it
            logger.error(
                    "A rank of the model '{}' does not stop; its memory is lost", model.getName());
            parameters.lose("with a rank that did not stop");
        } else if (!handedBack && manager.isOpen()) {
            parameters.handBack();
        } else if (!handedBack) {
            loseWithModel();
        }
    }

    private void loseWithModel() {
        if (initialized && !dropped) {
            logger.error(
                    "The model {} was closed before its ParallelTrainer: its trained weights are lost",
                    model.getName());
        }
        parameters.lose("because its model was closed before the ParallelTrainer");
    }

    /**
     * Saves a model so that a file that was there before is replaced by a whole one, or not at all.
     */
    static final class AtomicSave {

        private AtomicSave() {}

        /** What saves a model. */
        @FunctionalInterface
        interface Saver {

            /**
             * Saves the model.
             *
             * @param folder the folder
             * @param name the name of the model, or {@code null}
             * @throws IOException if it cannot be written
             */
            void save(Path folder, @Nullable String name) throws IOException;
        }

        /**
         * Saves a model beside the files that are there, and then takes their place.
         *
         * @param model the model
         * @param folder the folder
         * @param newName the name of the model, or {@code null} for its own
         * @throws IllegalArgumentException if the name has folders in it
         * @throws IOException if it cannot be written
         */
        static void save(Model model, Path folder, @Nullable String newName) throws IOException {
            String name = newName == null || newName.isEmpty() ? model.getName() : newName;
            Preconditions.checkArgument(
                    name.equals(String.valueOf(Path.of(name).getFileName())),
                    "The name of a model begins the name of its file, and \""
                            + name
                            + "\" leads to another folder: save it to that folder");
            Files.createDirectories(folder);
            try (SideFolder side = SideFolder.in(folder)) {
                Path last = null;
                if (model.getProperty("Epoch") == null) { // then DJL counts the files of the folder
                    int epoch = Utils.getCurrentEpoch(folder, name);
                    if (epoch >= 0) {
                        last =
                                side.resolve(
                                        String.format(Locale.ROOT, "%s-%04d.params", name, epoch));
                        Files.createFile(last);
                    }
                }
                model.save(side.getPath(), name);
                if (last != null) {
                    Files.delete(last);
                }
                side.replace();
            } catch (IOException e) {
                throw SideFolder.explained(folder, e);
            }
        }

        /** Returns the model as listeners of a trainer get to see it: saved in another way. */
        static Model savedBy(Model model, Saver saver) {
            return (Model)
                    Proxy.newProxyInstance(
                            Model.class.getClassLoader(),
                            new Class<?>[] {Model.class},
                            (proxy, method, args) -> {
                                if ("save".equals(method.getName()) && args.length == 2) {
                                    saver.save((Path) args[0], (String) args[1]);
                                    return null;
                                }
                                if ("equals".equals(method.getName())) {
                                    return args[0] == proxy || model.equals(args[0]);
                                }
                                try {
                                    return method.invoke(model, args);
                                } catch (InvocationTargetException e) {
                                    throw e.getCause();
                                }
                            });
        }
    }
}
