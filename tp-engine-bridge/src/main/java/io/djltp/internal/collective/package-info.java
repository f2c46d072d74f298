/** Contains what all backends of collective operations share. */
package io.djltp.internal.collective;
