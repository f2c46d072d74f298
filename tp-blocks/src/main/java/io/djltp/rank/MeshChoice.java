package io.djltp.rank;

import io.djltp.layout.ParallelMode;

import java.util.List;

/**
 * What a configuration says of how its ranks are arranged: a mode and a number of ranks, or a mesh.
 *
 * @param mode the mode, or {@code null}
 * @param mesh the mesh, or {@code null}
 * @param ranks the number of ranks, or {@code null}
 */
record MeshChoice(ParallelMode mode, DeviceMesh mesh, Integer ranks) {

    /** The axes that a mesh may have. */
    static final List<String> AXES = List.of(DeviceMesh.DATA, DeviceMesh.TENSOR);

    /** Returns the mesh that was chosen. */
    DeviceMesh get() {
        return mesh == null ? meshOfMode() : checkedMesh();
    }

    private DeviceMesh meshOfMode() {
        if (mode == null) {
            throw new IllegalArgumentException(
                    "You must set the mode: TENSOR, DATA or MIXED; or a mesh");
        }
        int count = ranks == null ? 0 : ranks;
        if (count < 1) {
            throw new IllegalArgumentException(
                    "The number of ranks must be 1 or more, not " + count);
        }
        return DeviceMesh.of(mode, count);
    }

    private DeviceMesh checkedMesh() {
        if (mode != null) {
            throw new IllegalArgumentException(
                    ("The mesh %s and the mode %s were set: set one of the two, setMesh or"
                                    + " setMode")
                            .formatted(mesh, mode));
        }
        for (String axis : mesh.getNames()) {
            if (!AXES.contains(axis)) {
                throw new IllegalArgumentException(
                        ("The mesh %s has the axis '%s', over which nothing is cut: the axes"
                                        + " are %s")
                                .formatted(mesh, axis, String.join(" and ", AXES)));
            }
        }
        if (ranks != null && ranks != mesh.getRanks()) {
            throw new IllegalArgumentException(
                    ("The mesh %s has %d ranks, not %d: choose sizes whose product is %d, or"
                                    + " leave setRanks out")
                            .formatted(mesh, mesh.getRanks(), ranks, ranks));
        }
        return mesh;
    }
}
