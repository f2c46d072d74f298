package io.djltp.zoo;

import ai.djl.Application;
import ai.djl.repository.AbstractRepository;
import ai.djl.repository.Artifact;
import ai.djl.repository.MRL;
import ai.djl.repository.Metadata;
import ai.djl.util.Progress;

import io.djltp.files.SideFolder;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/**
 * The files of one model of the zoo, from the class path. Slices can be read from files only, so
 * that they are put into DJL's cache once: to the side, then renamed, in a folder of their version.
 */
final class ZooRepository extends AbstractRepository {

    private final MRL mrl;
    private final ModelFiles files;
    private final Metadata metadata;

    ZooRepository(
            Application application,
            String artifactId,
            ModelFiles files,
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
