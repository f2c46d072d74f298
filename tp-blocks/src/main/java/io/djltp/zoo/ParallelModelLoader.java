package io.djltp.zoo;

import ai.djl.Application;
import ai.djl.MalformedModelException;
import ai.djl.repository.AbstractRepository;
import ai.djl.repository.Artifact;
import ai.djl.repository.MRL;
import ai.djl.repository.Metadata;
import ai.djl.repository.zoo.BaseModelLoader;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.TranslatorFactory;
import ai.djl.util.Progress;

import io.djltp.internal.files.SideFolder;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Loads a model of a zoo from files that its jar has, over as many ranks as an argument or an
 * option says, see {@link TensorParallelDegree}.
 */
public final class ParallelModelLoader extends BaseModelLoader {

    /** The group of the models of this library. */
    public static final String GROUP_ID = "io.djltp";

    /** Where the files of a model of the zoo come from. */
    public interface Source {

        /**
         * Returns which files these are: others have another version.
         *
         * @return the version, letters and digits
         * @throws IOException if they are not there
         */
        String getVersion() throws IOException;

        /**
         * Writes the files of a {@link ModelFolder}.
         *
         * @param folder an empty folder
         * @throws IOException if they cannot be read or written
         */
        void write(Path folder) throws IOException;
    }

    /**
     * Creates a loader.
     *
     * @param application what the model is for
     * @param artifactId the name of the model
     * @param files its files, which are put into DJL's cache when it is loaded first
     * @param translatorFactory what makes its translators
     */
    public ParallelModelLoader(
            Application application,
            String artifactId,
            Source files,
            Class<? extends TranslatorFactory> translatorFactory) {
        super(
                new ZooRepository(
                                application,
                                artifactId,
                                files,
                                Map.of("translatorFactory", translatorFactory.getName()))
                        .getMrl());
    }

    /** {@inheritDoc} DJL hands no options to block factories: the degree becomes an argument. */
    @Override
    public <I, O> ZooModel<I, O> loadModel(Criteria<I, O> criteria)
            throws IOException, ModelNotFoundException, MalformedModelException {
        Map<String, String> options = criteria.getOptions();
        String degree = options == null ? null : options.get(TensorParallelDegree.NAME);
        if (degree == null) {
            return super.loadModel(criteria);
        }
        Map<String, Object> arguments = new HashMap<>();
        if (criteria.getArguments() != null) {
            arguments.putAll(criteria.getArguments());
        }
        arguments.putIfAbsent(TensorParallelDegree.NAME, degree);
        return super.loadModel(criteria.toBuilder().optArguments(arguments).build());
    }

    /**
     * The files of one model of the zoo, from the class path. Slices can be read from files only,
     * so that they are put into DJL's cache once: to the side, then renamed, in a folder of their
     * version.
     */
    static final class ZooRepository extends AbstractRepository {

        private final MRL mrl;
        private final Source files;
        private final Metadata metadata;

        ZooRepository(
                Application application,
                String artifactId,
                Source files,
                Map<String, Object> arguments) {
            super("DJL Tensor Parallel", URI.create("djltp:///" + artifactId));
            this.files = files;
            mrl = model(application, ParallelModelLoader.GROUP_ID, artifactId);
            Artifact artifact = new Artifact();
            artifact.setName(artifactId);
            artifact.getArguments().putAll(arguments);
            artifact.setFiles(Map.of());
            metadata = new Metadata.MatchAllMetadata();
            metadata.setGroupId(ParallelModelLoader.GROUP_ID);
            metadata.setArtifactId(artifactId);
            metadata.setApplication(application);
            metadata.setArtifacts(List.of(artifact));
            metadata.setRepositoryUri(mrl.toURI());
        }

        /** Returns the address of the model. */
        MRL getMrl() {
            return mrl;
        }

        /** {@inheritDoc} */
        @Override
        public boolean isRemote() {
            return true; // its files are not where they are read
        }

        /** {@inheritDoc} */
        @Override
        public Metadata locate(MRL resource) {
            return metadata;
        }

        /** {@inheritDoc} */
        @Override
        public Artifact resolve(MRL resource, Map<String, String> filter) {
            return metadata.getArtifacts().get(0);
        }

        /** {@inheritDoc} */
        @Override
        public List<MRL> getResources() {
            return List.of(mrl);
        }

        /** {@inheritDoc} */
        @Override
        public Path getResourceDirectory(Artifact artifact) throws IOException {
            return getCacheDirectory().resolve(mrl.toURI().getPath()).resolve(files.getVersion());
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(Artifact artifact, Progress progress) throws IOException {
            Path folder = getResourceDirectory(artifact);
            if (Files.isDirectory(folder)) {
                return;
            }
            Files.createDirectories(folder.getParent());
            try (SideFolder side = SideFolder.in(folder.getParent())) {
                files.write(Files.createDirectory(side.resolve(folder.getFileName().toString())));
                side.replace();
            } catch (IOException e) {
                if (!Files.isDirectory(folder)) { // else another process was faster
                    throw e;
                }
            }
        }
    }
}
