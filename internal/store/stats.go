package store

import "github.com/cockroachdb/pebble/v2"

// Stats is what the storage engine says of itself.
type Stats struct {
	Format           uint64 // Pebble's format of the files
	DiskBytes        uint64 // of the whole database
	WALBytes         uint64 // live, not yet in tables
	TableBytes       uint64
	Tables           int64
	ReadAmp          int // tables a read may have to look at
	MemTableBytes    uint64
	CacheBytes       int64
	Flushes          int64
	Compactions      int64
	CompactionDebt   uint64 // bytes
	BackgroundErrors uint64 // reported by the engine; a writer's first one stops it
}

// Stats asks the storage engine. It takes locks of its own: not for hot paths.
func (s *Store) Stats() (Stats, error) {
	if err := s.enter(); err != nil {
		return Stats{BackgroundErrors: s.fault.background.Load()}, err
	}
	defer s.leave()
	m := s.db.Metrics()
	total := m.Total()
	return Stats{
		Format: uint64(s.db.FormatMajorVersion()), DiskBytes: m.DiskSpaceUsage(), WALBytes: m.WAL.Size,
		TableBytes: uint64(total.TablesSize), Tables: total.TablesCount, ReadAmp: m.ReadAmp(),
		MemTableBytes: m.MemTable.Size, CacheBytes: m.BlockCache.Size,
		Flushes: m.Flush.Count, Compactions: m.Compact.Count, CompactionDebt: m.Compact.EstimatedDebt,
		BackgroundErrors: s.fault.background.Load(),
	}, nil
}

// StateSeq is the event up to which the state is written down, without reading
// it; ok is false where none is. It may still turn out to be of no use.
func (s *Store) StateSeq() (seq uint64, ok bool, err error) {
	parts, err := s.Parts()
	if err != nil || len(parts) == 0 {
		return 0, false, err
	}
	return parts[len(parts)-1].Seq, true, nil
}

// NewestFormat is the format of the files that this program's writer leaves.
const NewestFormat = uint64(pebble.FormatNewest)
