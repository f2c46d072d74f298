/** Contains who computes what: the ranks, their devices, and the groups in which they compute. */
package io.djltp.mesh;
