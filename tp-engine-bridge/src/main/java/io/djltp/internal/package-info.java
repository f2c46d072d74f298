/** Contains what all packages of the library use. */
package io.djltp.internal;
